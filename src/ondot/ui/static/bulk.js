/* Stops and undoes operations on many, through the API. htmx requests the page itself again. */
(() => {
  "use strict";

  const { link, listen, post, report } = window.ondot;
  const API = "/v1/bulk";
  const renew = () => window.htmx.trigger("#main [hx-get]", "changed");

  listen({
    async stop({ id }) {
      await post(`${API}/${id}/stop`);
      report("The operation is stopped. What it has changed stays changed.");
      renew();
    },
    async undo({ id, title }) {
      if (!await window.ondot.confirm(`Undo "${title}"? This starts another operation, on the items that were changed.`)) return;
      const undo = await post(`${API}/${id}/undo`);
      report("The undo has started. ", link(`/bulk/${undo.id}`, "See its progress"));
      renew();
    },
  });
})();
