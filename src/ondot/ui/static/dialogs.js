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
  async function request(method, path, text) {
    const options = { method, headers: { accept: "application/json" } };
    if (text) {
      options.body = text;
      options.headers["content-type"] = "application/json";
    }
    const response = await fetch(path, options);
    const answer = await response.json().catch(() => ({}));
    if (response.ok) return answer;
    throw new Error(answer.detail || answer.title || `The server returned ${response.status}.`);
  }

  const post = (path, text) => request("POST", path, text);
  const send = (method, path, body) => request(method, path, body && JSON.stringify(body));

  /* Runs the action of each button that is pressed; the page is loaded again if the action returns true. */
  function listen(actions) {
    document.getElementById("main").addEventListener("click", async (event) => {
      const button = event.target.closest("button[data-act]");
      if (!button) return;
      try {
        if (await actions[button.dataset.act](button.dataset)) window.location.reload();
      } catch (error) {
        refuse(error);
      }
    });
  }

  /* A text with commas, as a list. */
  const list = (text) => text.split(",").map((part) => part.trim()).filter(Boolean);

  /* Says below a text field whether it is JSON, and lets the form be sent only then. */
  function check_json(dialog, field) {
    const fault = dialog.querySelector(".fault");
    try {
      JSON.parse(field.value);
      fault.textContent = "";
    } catch (error) {
      fault.textContent = `This is not JSON: ${error.message}`;
    }
    fault.hidden = fault.textContent === "";
    field.setCustomValidity(fault.textContent);
    field.setAttribute("aria-invalid", String(!fault.hidden));
  }

  /* Resolves with the form's fields if the person confirms, else with null. Focus goes back to where it was. */
  function ask(dialog) {
    const form = dialog.querySelector("form");
    const opener = document.activeElement && document.activeElement.id;
    return new Promise((resolve) => {
      dialog.returnValue = "";
      form.oninput = (event) => {
        if (event.target.matches("[data-json]")) check_json(dialog, event.target);
      };
      // Enter would press the first button, which cancels.
      form.onkeydown = (event) => {
        if (event.key !== "Enter" || !event.target.matches("input")) return;
        event.preventDefault();
        form.requestSubmit(form.querySelector('[value="yes"]'));
      };
      dialog.addEventListener("close", () => {
        // The page may have been swapped meanwhile: the button that opened it is another one now.
        const target = opener && document.getElementById(opener);
        if (target) target.focus();
        resolve(dialog.returnValue === "yes" ? new FormData(form) : null);
      }, { once: true });
      dialog.showModal();
    });
  }

  const make = (tag, text, fields = {}) => Object.assign(document.createElement(tag), { textContent: text, ...fields });

  /* A question without fields, in the same kind of dialog; its first word is the button. Resolves with the answer. */
  async function confirm(text) {
    const end = text.indexOf("?") + 1;
    const [question, words, yes] = [text.slice(0, end), text.slice(end).trim(), text.split(" ")[0].replace("?", "")];
    const dialog = make("dialog", "");
    const form = make("form", "", { method: "dialog" });
    const choice = make("div", "", { className: "choice" });
    choice.append(make("button", "Back", { value: "no", className: "act" }), make("button", yes, { value: "yes", className: "act" }));
    form.append(make("h2", question, { id: "h-confirm" }), make("p", words), choice);
    dialog.setAttribute("aria-labelledby", "h-confirm");
    dialog.append(form);
    document.body.append(dialog);
    const answer = await ask(dialog);
    dialog.remove();
    return answer !== null;
  }

  function link(address, words) {
    const anchor = document.createElement("a");
    anchor.href = address;
    anchor.textContent = words;
    return anchor;
  }

  window.ondot = { ask, confirm, link, list, listen, post, refuse, report, send };
})();
