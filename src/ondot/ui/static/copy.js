/* A copy button next to each example. Browsers allow the clipboard only on https and localhost; elsewhere there is no
   button, and the text can still be selected. */
(() => {
  "use strict";

  const SHOWN_MS = 1500;
  if (!navigator.clipboard) return;

  function add_button(example) {
    const box = document.createElement("div");
    const button = document.createElement("button");
    box.className = "copyable";
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(example.textContent);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not allowed";
      }
      setTimeout(() => { button.textContent = "Copy"; }, SHOWN_MS);
    });
    example.replaceWith(box);
    box.append(example, button);
  }

  function add_buttons() {
    for (const example of document.querySelectorAll(":not(.copyable) > pre[data-copy]")) add_button(example);
  }

  add_buttons();
  document.body.addEventListener("htmx:afterSettle", add_buttons);
})();
