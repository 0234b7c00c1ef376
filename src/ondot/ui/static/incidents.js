/* The buttons of the pages of incidents, through the API. */
(() => {
  "use strict";

  const { listen, send } = window.ondot;
  const API = "/v1/incidents";

  listen({
    async acknowledge({ id }) {
      const note = window.prompt("No further reminders. A note for others, if you like:", "");
      if (note === null) return false;
      await send("POST", `${API}/${id}/acknowledge`, note.trim() ? { note: note.trim() } : {});
      return true;
    },
    async resolve({ id, name }) {
      const question = `End "${name}"? What still holds stays quiet until it was over once. A note for others, if you like:`;
      const note = window.prompt(question, "");
      if (note === null) return false;
      await send("POST", `${API}/${id}/resolve`, note.trim() ? { note: note.trim() } : {});
      return true;
    },
  });
})();
