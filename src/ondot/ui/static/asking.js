/* What pages that act have in common: asking the person in a dialog, asking the API, telling what became of it. */
(() => {
  "use strict";

  const AWAY = "The server cannot be reached: nothing is known to have been done.";
  const refusal = document.getElementById("refusal");
  const done = document.getElementById("done");

  function show(place, parts) {
    place.replaceChildren(...parts);
    place.hidden = parts.length === 0;
  }

  /* What was done, in words and links; nothing is refused any more. */
  function tell(...parts) {
    show(refusal, []);
    show(done, parts);
  }

  function refuse(error) {
    show(done, []);
    show(refusal, [error instanceof TypeError ? AWAY : error.message]);
  }

  /* `text`: the body as JSON text, so that numbers go as they were written. */
  async function post(path, text) {
    const options = { method: "POST", headers: { accept: "application/json" } };
    if (text) {
      options.body = text;
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(path, options);
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return answer;
    throw new Error(answer.detail || answer.title || `The server answered ${response.status}.`);
  }

  /* The form's fields once it is confirmed, else null. */
  function ask(dialog) {
    const form = dialog.querySelector("form");
    return new Promise((resolve) => {
      dialog.returnValue = "";
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? new FormData(form) : null), { once: true });
      dialog.showModal();
    });
  }

  function link(address, words) {
    const made = document.createElement("a");
    made.href = address;
    made.textContent = words;
    return made;
  }

  window.ondot = { ask, link, post, refuse, tell };
})();
