/* The buttons of a run and of its steps: a dialog with what would happen, then a request to the API (W3, W9). */
(() => {
  "use strict";

  const { ask, link, post, refuse, report } = window.ondot;
  const dialog = document.getElementById("run-dialog");
  const NAMES_SHOWN = 8;

  const address_of = (data) => `/v1/runs/${data.run || document.getElementById("main").dataset.run}`;
  const step_address_of = (data) => `${address_of(data)}/steps/${encodeURIComponent(data.name)}`;
  const list_of = (names) => names.slice(0, NAMES_SHOWN).join(", ") + (names.length > NAMES_SHOWN ? ` and ${names.length - NAMES_SHOWN} more` : "");

  /* What a change would do, from its dry run, in words. */
  function preview_of(answer) {
    const by_hand = Object.keys(answer.set_by_hand || {});
    const lines = [
      ["These steps run again, if their rules say so", answer.runs_again],
      ["These run now and are cancelled first", answer.stops],
      ["Set by hand", by_hand],
      ["Results that are taken over", answer.taken_over],
    ].filter(([, names]) => names && names.length);
    const parts = lines.map(([words, names]) => `${words}: ${list_of(names)}.`);
    parts.push(`The run is ${answer.state.toLowerCase()} then.`);
    return parts.map((text) => Object.assign(document.createElement("p"), { textContent: text }));
  }

  const field = (name) => dialog.querySelector(`[data-field="${name}"]`);

  function set_dialog({ title, words, yes, danger, fields = [], needs_reason = false }) {
    dialog.querySelector("form").reset();
    dialog.querySelector("[data-title]").textContent = title;
    dialog.querySelector("[data-words]").textContent = words;
    const button = dialog.querySelector("[data-yes]");
    button.textContent = yes;
    button.classList.toggle("danger", Boolean(danger));
    for (const name of ["result", "version"]) field(name).hidden = !fields.includes(name);
    dialog.querySelector("[name=reason]").required = needs_reason;
    const preview = dialog.querySelector("[data-preview]");
    preview.hidden = true;
    preview.replaceChildren();
    check_result();
  }

  async function show_preview(path, body) {
    const preview = dialog.querySelector("[data-preview]");
    preview.hidden = false;
    preview.textContent = "Reading what would happen …";
    try {
      const version = field("version").hidden ? {} : { version: dialog.querySelector("[name=version]").value };
      preview.replaceChildren(...preview_of(await post(path, JSON.stringify({ ...body, ...version, dry_run: true }))));
    } catch (error) {
      preview.textContent = error.message;
    }
  }

  function check_result() {
    const text = dialog.querySelector("[name=result]");
    const fault = dialog.querySelector(".fault");
    fault.textContent = "";
    if (!field("result").hidden) {
      try {
        JSON.parse(text.value);
      } catch (error) {
        fault.textContent = `This is not JSON: ${error.message}`;
      }
    }
    fault.hidden = fault.textContent === "";
    text.setCustomValidity(fault.textContent);
  }

  /* Asks, posts, reports. `members`: further fields of the body, as JSON text, from the form. */
  async function change(options, path, body, done, members = () => []) {
    set_dialog(options);
    if (options.preview) {
      show_preview(path, body);
      dialog.querySelector("[name=version]").onchange = () => show_preview(path, body);
    }
    const form = await ask(dialog);
    if (!form) return;
    const parts = Object.entries(body).map(([name, value]) => `${JSON.stringify(name)}: ${JSON.stringify(value)}`);
    const reason = (form.get("reason") || "").trim();
    if (reason) parts.push(`"reason": ${JSON.stringify(reason)}`);
    if (options.fields && options.fields.includes("version")) parts.push(`"version": ${JSON.stringify(form.get("version"))}`);
    parts.push(...members(form));
    const answer = await post(path, `{${parts.join(", ")}}`);
    report(...[done(answer)].flat());
  }

  const retry = (data, body, title, words) => change(
    { title, words, yes: "Retry", fields: ["version"], preview: true }, `${address_of(data)}/retry`, body, () => "The steps run again.");

  const ACTIONS = {
    cancel: (data) => change({ title: "Cancel this run?", words: "Steps that have not started will not start, those that run are asked to stop, then its final steps run.", yes: "Cancel it", danger: true, preview: true }, `${address_of(data)}/cancel`, {}, () => "The run is being cancelled."),
    pause: (data) => change({ title: "Pause this run?", words: "No further step is released. Steps that run go on, and the run's timeout too.", yes: "Pause" }, `${address_of(data)}/pause`, {}, () => "The run is paused."),
    resume: (data) => change({ title: "Resume this run?", words: "Steps that are ready are released.", yes: "Resume" }, `${address_of(data)}/resume`, {}, () => "The run goes on."),
    retry: (data) => retry(data, {}, "Retry all failed steps?", "The run keeps its id. Steps that succeeded do not run again."),
    rerun: (data) => change({ title: "Run it again?", words: "This makes a new run. This one stays as it is.", yes: "Rerun", fields: ["version"], preview: true }, `${address_of(data)}/rerun`, {}, (run) => ["A new run starts: ", link(`/runs/${run.run_id}`, "the new run")]),
    "give-up": (data) => change({ title: "Give up this run?", words: "It ends as failed, after its final steps. Nothing can be retried in it then.", yes: "Give up", danger: true, needs_reason: true, preview: true }, `${address_of(data)}/give-up`, {}, () => "The run ends as failed."),
    "retry-step": (data) => retry(data, { steps: [data.name] }, `Retry ${data.name}?`, "Steps below it that wait for it go on when it has succeeded."),
    "retry-from": (data) => retry(data, { from: [data.name] }, `Retry from ${data.name}?`, "It and everything below it run again. A step that runs is cancelled first."),
    skip: (data) => change({ title: `Skip ${data.name}?`, words: "It counts as skipped, and the run goes on by the rules of the steps below.", yes: "Skip", needs_reason: true, preview: true }, `${address_of(data)}/skip`, { step: data.name }, () => "The step is skipped."),
    result: (data) => change({ title: `Set the result of ${data.name}`, words: "It counts as succeeded with this result.", yes: "Set result", fields: ["result"], needs_reason: true }, `${address_of(data)}/result`, { step: data.name }, () => "The step has this result.", (form) => [`"result": ${form.get("result")}`]),
    approve: (data) => change({ title: `Approve ${data.name}?`, words: "The steps below it may run.", yes: "Approve" }, `${step_address_of(data)}/approve`, {}, () => "The step is approved."),
    reject: (data) => change({ title: `Reject ${data.name}?`, words: "It counts as failed.", yes: "Reject", danger: true }, `${step_address_of(data)}/reject`, {}, () => "The step is rejected."),
    "cancel-step": (data) => change({ title: `Cancel ${data.name}?`, words: "The execution is asked to stop. The step counts as failed.", yes: "Cancel it", danger: true }, `/v1/executions/${data.execution}/cancel`, {}, () => "The step was asked to stop."),
  };

  if (dialog) {
    dialog.addEventListener("input", check_result);
    document.getElementById("main").addEventListener("click", async (event) => {
      const button = event.target.closest("button[data-act]");
      if (!button || !ACTIONS[button.dataset.act]) return;
      try {
        await ACTIONS[button.dataset.act](button.dataset);
      } catch (error) {
        refuse(error);
      }
      for (const id of ["run", "step"]) if (document.getElementById(id)) window.htmx.trigger(`#${id}`, "changed");
      document.body.dispatchEvent(new CustomEvent("ondot:changed"));
    });
  }
})();
