/* The buttons of the report, each one call of the API; and "yesterday" in the reader's own zone. */
(() => {
  "use strict";

  const { link } = window.ondot;
  const refusal = document.getElementById("refusal");
  const done = document.getElementById("done");
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

  for (const link of document.querySelectorAll("a[data-since]")) {
    link.href = `/report?since=${link.dataset.since}&zone=${encodeURIComponent(zone)}`;
  }

  async function repair(button) {
    if (!await window.ondot.confirm(`${button.textContent.trim()}?`)) return;
    button.disabled = true;
    const options = { method: button.dataset.method, headers: { accept: "application/json" } };
    if (button.dataset.body !== undefined) {
      options.body = button.dataset.body;
      options.headers["content-type"] = "application/json";
    }
    try {
      const response = await fetch(button.dataset.path, options);
      if (!response.ok) {
        const problem = await response.json().catch(() => ({}));
        throw new Error(problem.detail || problem.title || `The server returned ${response.status}.`);
      }
      const answer = await response.json().catch(() => ({}));
      refusal.hidden = true;
      // An operation on many goes on in the background; a repair of one is done.
      const is_operation = response.status === 202 && answer.action && answer.total !== undefined;
      done.textContent = `${is_operation ? "Started" : "Done"}: ${button.textContent.trim()}. Reload the page to see what is left.`;
      if (is_operation) done.append(" ", link(`/bulk/${answer.id}`, "See the progress"));
      done.hidden = false;
      button.closest("li").classList.add("repaired");
    } catch (error) {
      button.disabled = false;
      refusal.textContent = error instanceof TypeError ? "The server cannot be reached. The action may not have been done: reload the page to check." : error.message;
      refusal.hidden = false;
    }
  }

  document.getElementById("main").addEventListener("click", (event) => {
    const button = event.target.closest("button[data-path]");
    if (button) repair(button);
  });
})();
