/* The page of one event: replay it to a job, through the API. */
(() => {
  "use strict";

  const { link, listen, report, send } = window.ondot;

  listen({
    async replay({ job, name }) {
      if (!await window.ondot.confirm(`Start ${name} again with this event?`)) return false;
      const id = document.getElementById("main").dataset.event;
      const answer = await send("POST", `/v1/events/${id}/replay`, { job_id: job });
      report("Started: ", link(`/executions/${answer.execution_id}`, answer.execution_id));
      return false;
    },
  });
})();
