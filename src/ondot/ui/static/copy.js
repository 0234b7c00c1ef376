/* A button beside each example that copies it. Browsers give the clipboard only to https and to localhost; elsewhere
   there is no button, and the text can be selected as ever. */
(() => {
  "use strict";

  const TOLD_MS = 1500;
  if (!navigator.clipboard) return;

  function add_button(example) {
    const box = document.createElement("div");
    const button = document.createElement("button");
    box.className = "copied";
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
      setTimeout(() => { button.textContent = "Copy"; }, TOLD_MS);
    });
    example.replaceWith(box);
    box.append(example, button);
  }

  function add_buttons() {
    for (const example of document.querySelectorAll(":not(.copied) > pre[data-copy]")) add_button(example);
  }

  add_buttons();
  document.body.addEventListener("htmx:afterSettle", add_buttons);
})();
