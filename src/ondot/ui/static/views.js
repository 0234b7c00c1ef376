/* Saves the search of a list as a view, and deletes views, through the API. */
(() => {
  "use strict";

  const { refuse, send } = window.ondot;
  const API = "/v1/views";

  async function save({ viewSave: q, of }) {
    const fields = new FormData(document.getElementById("views"));
    await send("POST", API, { name: fields.get("view").trim(), of, q, shared: fields.get("shared") === "yes" });
    return true;
  }

  async function remove({ viewDelete: id, name }) {
    if (!await window.ondot.confirm(`Delete the view ${name}? What it lists stays.`)) return false;
    await send("DELETE", `${API}/${id}`);
    return true;
  }

  // Enter presses the button: the form itself goes nowhere.
  document.getElementById("main").addEventListener("submit", (event) => {
    if (event.target.id !== "views") return;
    event.preventDefault();
    event.target.querySelector("[data-view-save]")?.click();
  });

  document.getElementById("main").addEventListener("click", async (event) => {
    const button = event.target.closest("button[data-view-save], button[data-view-delete]");
    if (!button) return;
    try {
      if (await ("viewSave" in button.dataset ? save : remove)(button.dataset)) window.location.reload();
    } catch (error) {
      refuse(error);
    }
  });
})();
