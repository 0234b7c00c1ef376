/* A page that asks for itself again leaves alone what has not changed: the fragment's data-mark is the same, and nothing
   is swapped but the liveness. Where it is swapped, what was unfolded stays unfolded, and what was ticked stays ticked. */
(() => {
  "use strict";

  let unfolded = new Map();
  let ticked = [];

  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const shown = event.detail.target;
    if (!shown.dataset || !shown.dataset.mark) return;
    const came = new DOMParser().parseFromString(event.detail.serverResponse, "text/html").getElementById(shown.id);
    if (came && came.dataset.mark === shown.dataset.mark) event.detail.swapOverride = "none";
    unfolded = new Map([...shown.querySelectorAll("details[id]")].map((details) => [details.id, details.open]));
    ticked = [...shown.querySelectorAll("input[type=checkbox][id]:checked")].map((box) => box.id);
  });

  document.body.addEventListener("htmx:afterSwap", () => {
    for (const [id, open] of unfolded) {
      const details = document.getElementById(id);
      if (details && details.open !== open) details.open = open;
    }
    for (const id of ticked) {
      const box = document.getElementById(id);
      if (box) box.checked = true;
    }
  });
})();
