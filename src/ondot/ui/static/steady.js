/* A page that requests itself again swaps only changes: while the fragment's data-mark is the same, only the liveness is
   swapped. After a swap, open details stay open and ticked boxes stay ticked. */
(() => {
  "use strict";

  let opened = new Map();
  let ticked = [];

  document.body.addEventListener("htmx:beforeSwap", (event) => {
    const current = event.detail.target;
    if (!current.dataset || !current.dataset.mark) return;
    const fresh = new DOMParser().parseFromString(event.detail.serverResponse, "text/html").getElementById(current.id);
    if (fresh && fresh.dataset.mark === current.dataset.mark) event.detail.swapOverride = "none";
    opened = new Map([...current.querySelectorAll("details[id]")].map((details) => [details.id, details.open]));
    ticked = [...current.querySelectorAll("input[type=checkbox][id]:checked")].map((box) => box.id);
  });

  document.body.addEventListener("htmx:afterSwap", () => {
    for (const [id, open] of opened) {
      const details = document.getElementById(id);
      if (details && details.open !== open) details.open = open;
    }
    for (const id of ticked) {
      const box = document.getElementById(id);
      if (box) box.checked = true;
    }
  });
})();
