/* Shared by pages with buttons: a dialog for the person, a request to the API, a message with the result. */
(() => {
  "use strict";

  const AWAY = "The server cannot be reached. The action may not have been done: reload the page to check.";
  const refusal = document.getElementById("refusal");
  const done = document.getElementById("done");

  function show(place, parts) {
    place.replaceChildren(...parts);
    place.hidden = parts.length === 0;
  }

  /* Shows the result, as texts and links, and clears the last error. */
  function report(...parts) {
    show(refusal, []);
    show(done, parts);
  }

  function refuse(error) {
    show(done, []);
    show(refusal, [error instanceof TypeError ? AWAY : error.message]);
  }

  /* `text`: the body as JSON text, so that numbers are sent as typed. */
  async function post(path, text) {
    const options = { method: "POST", headers: { accept: "application/json" } };
    if (text) {
      options.body = text;
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(path, options);
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return answer;
    throw new Error(answer.detail || answer.title || `The server returned ${response.status}.`);
  }

  /* Resolves with the form's fields if the person confirms, else with null. */
  function ask(dialog) {
    const form = dialog.querySelector("form");
    return new Promise((resolve) => {
      dialog.returnValue = "";
      dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? new FormData(form) : null), { once: true });
      dialog.showModal();
    });
  }

  function link(address, words) {
    const anchor = document.createElement("a");
    anchor.href = address;
    anchor.textContent = words;
    return anchor;
  }

  window.ondot = { ask, link, post, refuse, report };
})();
