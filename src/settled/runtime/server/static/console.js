"use strict";
// Follows what waits while a page is open: counts in the header, and the list or the action that the page shows.
// A hidden tab lets its stream go: a browser opens six connections to one server, and a seventh tab would wait for ever.
(() => {
  const body = document.body;
  const address = body.dataset.live;
  const offline = document.getElementById("offline");
  const seen = { approvals: body.dataset.approvals, queue: body.dataset.queue, outbox: body.dataset.outbox, one: body.dataset.one };
  let stream = null;

  function show(pulse) {
    offline.hidden = true;
    for (const name of ["approvals", "queue", "outbox"]) {
      count(name, pulse[name]);
      follow(name, pulse[`${name}_mark`]);
    }
    follow("one", pulse.one_mark);
  }

  function count(name, number) {
    const place = document.querySelector(`[data-count="${name}"]`);
    if (!place || place.textContent.endsWith("+")) return;
    place.textContent = number;
    place.hidden = number === 0;
  }

  function follow(name, mark) {
    const list = document.querySelector(`[data-follows="${name}"]`);
    if (!list || (mark ?? "") === (seen[name] ?? "")) return;
    seen[name] = mark ?? "";
    if (isBusy(list)) document.querySelector(".stale").hidden = false;
    else refresh();
  }

  // What somebody is reading or writing in is not taken from under the hands.
  function isBusy(list) {
    return list.contains(document.activeElement) || list.querySelector("details[open]") !== null;
  }

  function refresh() {
    document.querySelector(".stale").hidden = true;
    htmx.trigger(document.querySelector("[data-follows]"), "refresh");
  }

  function open() {
    if (stream || !address || document.hidden) return;
    stream = new EventSource(address);
    stream.addEventListener("pulse", (event) => show(JSON.parse(event.data)));
    stream.addEventListener("ended", () => location.reload());
    stream.addEventListener("error", () => {
      offline.hidden = false;
      if (stream.readyState !== EventSource.CLOSED) return; // it tries again by itself
      close();
      setTimeout(open, 5000);
    });
  }

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-refresh]")) refresh();
  });
  for (const name of ["htmx:sendError", "htmx:responseError"])
    document.addEventListener(name, () => (offline.hidden = false));
  // A form that is sent twice by a double click is sent once.
  document.addEventListener("submit", (event) => {
    const button = event.submitter;
    if (event.target.method === "post" && button) setTimeout(() => (button.disabled = true));
  });
  addEventListener("pageshow", () => document.querySelectorAll("button:disabled").forEach((one) => (one.disabled = false)));
  open();
})();
