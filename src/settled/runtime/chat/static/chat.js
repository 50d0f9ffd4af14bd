"use strict";
// The chat page. What is true stands on the server: the page shows a thread's state, follows a run by the numbers of its
// events, and names each message once, at its first letter, so that it is answered once however often it is sent.

(() => {
  const root = document.getElementById("chat");
  const words = JSON.parse(root.dataset.words);
  const decides = root.dataset.decides === "yes";
  const at = (id) => document.getElementById(id);
  const LOOK_MS = 2000, MOST_THREADS = 50, MOST_TRIES = 3, MOST_SHOWN = 300;
  const OVER = new Set(["succeeded", "failed", "cancelled", "compensated"]);
  const stored = `settled.chat.${root.dataset.tenant}.`;

  let thread = null;        // the name of the open thread
  let isNew = false;        // nobody has told the server of it yet
  let messages = [];        // of the thread, as they were read last
  let actions = new Map();  // by id
  let source = null;        // the stream of a run that is under way
  let heard = null;         // the run of that stream, or the last one that was heard to its end
  let running = null;
  let pieces = new Map();   // what is being said, by the message's id
  let epoch = 0;            // rises with each thread that is opened: what comes late for another one is dropped
  const continued = new Map();  // how often a thread was told to go on, by what has moved

  // Only pages of a secure address have randomUUID.
  const newName = () => [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");

  const say = (key, values = {}) => words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);

  class Refusal extends Error {
    constructor(status, sentence) { super(sentence); this.status = status; }
  }

  async function ask(method, path, body, headers = {}) {
    const answer = await fetch(path, {
      method,
      headers: { "content-type": "application/json", "x-csrf-token": root.dataset.csrf, ...headers },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    if (answer.status === 401) location.reload();
    const text = await answer.text();
    const read = text ? JSON.parse(text) : null;
    if (!answer.ok) throw new Refusal(answer.status, (read && read.message) || answer.statusText);
    return read;
  }

  const of = (path = "") => `/threads/${encodeURIComponent(thread)}${path}`;

  function make(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function tell(key, values) {
    at("notice").textContent = key ? say(key, values) : "";
    at("notice").hidden = !key;
    at("notice").classList.toggle("trouble", ["offline", "refused", "failed", "gone"].includes(key));
  }

  function trouble(error) {
    if (error instanceof Refusal) tell("refused", { why: error.message });
    else tell("offline");
  }

  // Drafts: a message and its name, kept until the server has it. All tabs of this browser have the same.

  const draftKey = () => `${stored}draft.${thread}`;

  function draft() {
    try { return JSON.parse(localStorage.getItem(draftKey())); } catch { return null; }
  }

  function keepDraft(text) {
    const id = (draft() || {}).id || newName();
    if (text) localStorage.setItem(draftKey(), JSON.stringify({ id, text }));
    else localStorage.removeItem(draftKey());
    return id;
  }

  function nextNew() {
    const key = `${stored}new`;
    const name = localStorage.getItem(key) || newName();
    localStorage.setItem(key, name);
    return name;
  }

  // Threads

  async function list() {
    const found = await ask("POST", "/threads/search", { limit: MOST_THREADS });
    const items = found.map((one) => {
      const item = make("li"), link = make("a", "", (one.metadata && one.metadata.title) || words.new);
      link.href = `?thread=${encodeURIComponent(one.thread_id)}`;
      if (one.thread_id === thread) link.setAttribute("aria-current", "true");
      link.addEventListener("click", (event) => { event.preventDefault(); open(one.thread_id); });
      item.append(link);
      return item;
    });
    at("list").replaceChildren(...items);
    at("no-threads").hidden = items.length > 0;
    const mine = found.find((one) => one.thread_id === thread);
    at("heading").textContent = (mine && mine.metadata.title) || words.new;
  }

  function open(name) {
    epoch += 1;
    hush();
    thread = name || nextNew();
    isNew = !name;
    [messages, actions, heard, running, pieces] = [[], new Map(), null, null, new Map()];
    history.replaceState(null, "", name ? `?thread=${encodeURIComponent(name)}` : location.pathname);
    at("text").value = (draft() || {}).text || "";
    tell(null);
    draw();
    if (matchMedia("(max-width: 46rem)").matches) at("drawer").open = false;
    list().catch(trouble);
    look();
  }

  // What is shown

  async function read() {
    const mine = epoch;
    const state = await ask("GET", of("/state"));
    if (mine !== epoch) return;
    messages = state.values.messages || [];
    pieces = new Map();
    const waiting = draft();
    if (waiting && messages.some((one) => one.id === waiting.id)) {
      localStorage.removeItem(draftKey());
      if (at("text").value === waiting.text) at("text").value = "";
    }
    draw();
  }

  const textOf = (content) =>
    typeof content === "string" ? content : (content || []).map((part) => part.text || "").join("");

  function draw() {
    const log = at("messages");
    const isAtEnd = innerHeight + scrollY >= document.body.scrollHeight - 80;
    const told = new Map(messages.filter((one) => one.type === "tool").map((one) => [one.tool_call_id, one]));
    const shown = [];
    for (const one of messages.slice(-MOST_SHOWN)) {
      const text = textOf(one.content);
      if (one.type === "human") shown.push(bubble(one.id, words.you, text, "mine"));
      if (one.type === "ai" && text) shown.push(bubble(one.id, words.agent, text, ""));
      if (one.type === "ai") for (const call of one.tool_calls || []) shown.push(act(one, call, told.get(call.id)));
    }
    const known = new Set(messages.map((one) => one.id));
    for (const [id, text] of pieces) if (text && !known.has(id)) shown.push(bubble(id, words.agent, text, ""));
    merge(log, shown);
    at("empty").hidden = shown.length > 0;
    at("earlier").hidden = messages.length <= MOST_SHOWN;
    at("thinking").hidden = at("stop").hidden = running === null;
    if (isAtEnd) scrollTo(0, document.body.scrollHeight);
  }

  // Replace only what has changed: what a reader has selected or is writing in stays.
  function merge(log, shown) {
    const old = new Map([...log.children].map((one) => [one.dataset.key, one]));
    shown.forEach((one, place) => {
      const before = old.get(one.dataset.key);
      const kept = before && before.dataset.mark === one.dataset.mark ? before : one;
      if (before && kept !== before) before.replaceWith(kept);
      if (log.children[place] !== kept) log.insertBefore(kept, log.children[place] || null);
      old.delete(one.dataset.key);
    });
    for (const one of old.values()) one.remove();
  }

  function bubble(id, by, text, className) {
    const item = make("li", className);
    item.dataset.key = `m:${id}`;
    item.dataset.mark = text;
    const said = make("div", "bubble", text);
    said.dir = "auto";
    item.append(make("p", "by", by), said);
    return item;
  }

  function actionOf(message, call, answer) {
    const id = answer && answer.artifact && answer.artifact.action_id;
    const found = id && actions.get(id);
    if (found) return found;
    return [...actions.values()].find((one) => one.correlation_id === `${message.id}/${call.id}`);
  }

  function act(message, call, answer) {
    const item = make("li", "act");
    const one = actionOf(message, call, answer);
    item.dataset.key = `c:${message.id}/${call.id}`;
    item.dataset.mark = JSON.stringify(one || null);
    if (!one) {
      item.append(make("p", "soft", say("looked", { tool: call.name })));
      return item;
    }
    const head = make("p");
    const state = make("span", `state ${one.state}`, words[`state_${one.is_manual ? "manual" : one.state}`]);
    head.append(make("bdi", "", one.summary || one.tool), " ", state);
    item.dataset.action = one.action_id;
    item.append(head);
    if (one.receipt) item.append(make("p", "", say("receipt", { receipt: one.receipt })));
    if (one.attempt > 1) item.append(make("p", "soft", say("attempt", { n: one.attempt })));
    if (one.approval) item.append(...question(one));
    if (root.dataset.console) {
      const more = make("a", "soft", words.details);
      more.href = `/actions/${encodeURIComponent(one.action_id)}`;
      item.append(more);
    }
    return item;
  }

  function question(one) {
    const parts = [make("p", "", one.approval.reason), make("pre", "", JSON.stringify(one.approval.arguments, null, 1))];
    if (one.approval.valid_until) {
      const when = new Date(one.approval.valid_until).toLocaleString(root.dataset.language);
      parts.push(make("p", "soft", say("until", { at: when })));
    }
    if (!decides) return [...parts, make("p", "soft", words.waits)];
    const label = make("label", "", words.reason), note = make("input");
    note.maxLength = 500;
    label.append(note);
    const buttons = make("div", "buttons");
    for (const [type, className] of [["approve", "good"], ["reject", "bad"]]) {
      const button = make("button", className, words[type]);
      button.type = "button";
      button.addEventListener("click", () => decide(one, type, note.value, buttons));
      buttons.append(button);
    }
    return [...parts, label, buttons];
  }

  // What people do

  async function decide(one, type, note, buttons) {
    for (const button of buttons.children) button.disabled = true;
    try {
      const body = { action_id: one.action_id, fingerprint: one.approval.fingerprint, type, note };
      listen(await ask("POST", `/chat${of("/decisions")}`, body));
    } catch (error) {
      trouble(error);
    }
    for (const button of buttons.children) button.disabled = false;
    look();
  }

  async function send() {
    const text = at("text").value.trim();
    if (!text) return;
    const id = keepDraft(text);
    const mine = epoch;
    at("send").disabled = true;
    tell(null);
    try {
      const body = {
        assistant_id: at("agent").value,
        input: { messages: [{ role: "user", content: text, id }] },
        stream_mode: ["messages-tuple", "updates", "custom"],
        if_not_exists: "create",
      };
      const run = await ask("POST", of("/runs"), body);
      if (mine !== epoch) return;
      if (isNew) {
        localStorage.removeItem(`${stored}new`);
        history.replaceState(null, "", `?thread=${encodeURIComponent(thread)}`);
        isNew = false;
        list().catch(trouble);
      }
      if (!messages.some((one) => one.id === id)) messages.push({ type: "human", id, content: text });
      at("text").value = "";
      listen(run);
    } catch (error) {
      trouble(error);
    } finally {
      at("send").disabled = false;
    }
  }

  async function stop() {
    if (running === null) return;
    try { await ask("POST", of(`/runs/${running}/cancel`)); } catch (error) { trouble(error); }
  }

  // What the server says

  function hush() {
    if (source) source.close();
    source = null;
  }

  // The browser comes back by itself with the id of the last event that it has heard.
  function listen(run) {
    if (source && heard === run.run_id) return;
    hush();
    [heard, running] = [run.run_id, run.run_id];
    const mine = epoch;
    source = new EventSource(of(`/runs/${run.run_id}/stream`));
    source.addEventListener("messages", (event) => {
      const [piece] = JSON.parse(event.data);
      if (!piece.type.startsWith("AI") && piece.type !== "ai") return;
      pieces.set(piece.id, (pieces.get(piece.id) || "") + textOf(piece.content));
      draw();
    });
    source.addEventListener("custom", () => look());
    source.addEventListener("updates", () => read().catch(trouble));
    source.addEventListener("error", (event) => {
      if (event.data !== undefined) tell("failed");
      else if (source && source.readyState === EventSource.CLOSED) finish(mine);
    });
    source.addEventListener("end", () => finish(mine));
    draw();
  }

  function finish(mine) {
    if (mine !== epoch) return;
    hush();
    running = null;
    read().then(look).catch(trouble);
  }

  let isLooking = false;

  async function look() {
    if (isLooking || isNew || thread === null) return;
    isLooking = true;
    const mine = epoch;
    try {
      const now = await ask("GET", `/chat${of("/live")}`);
      if (mine !== epoch) return;
      if (at("notice").textContent === words.offline) tell(null);
      actions = new Map(now.actions.map((one) => [one.action_id, one]));
      const isLive = now.run && ["pending", "running"].includes(now.run.status);
      if (isLive && (source === null || heard !== now.run.run_id)) listen(now.run);
      else if (!isLive && now.run && heard !== now.run.run_id) {
        heard = now.run.run_id;
        await read();
      }
      if (!isLive && running === null) await goOn(now);
      draw();
    } catch (error) {
      if (error instanceof Refusal && error.status === 404) tell("gone");
      else trouble(error);
    } finally {
      isLooking = false;
    }
  }

  // Something has moved while no run was under way (decided elsewhere, found out by a worker): the thread is told.
  async function goOn(now) {
    const told = new Map();
    for (const one of messages) if (one.artifact && one.artifact.action_id) told.set(one.artifact.action_id, one.artifact);
    for (const one of now.actions) {
      const last = told.get(one.action_id);
      const isUntold = one.state === "approved" || (OVER.has(one.state) && (!last || !OVER.has(last.state)));
      const tries = continued.get(one.action_id + one.state) || 0;
      if (!isUntold || tries >= MOST_TRIES) continue;
      continued.set(one.action_id + one.state, tries + 1);
      const key = `go-on:${one.action_id}:${one.state}:${now.run.run_id}`;
      const body = { assistant_id: now.run.assistant_id, stream_mode: ["messages-tuple", "updates", "custom"] };
      listen(await ask("POST", of("/runs"), body, { "idempotency-key": key }));
      return;
    }
  }

  at("compose").addEventListener("submit", (event) => { event.preventDefault(); send(); });
  at("text").addEventListener("input", (event) => keepDraft(event.target.value.trim() ? event.target.value : ""));
  at("text").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!at("send").disabled) send();
  });
  at("new").addEventListener("click", () => { open(null); at("text").focus(); });
  at("stop").addEventListener("click", stop);
  addEventListener("storage", (event) => {
    if (event.key === draftKey()) at("text").value = event.newValue ? JSON.parse(event.newValue).text : "";
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  setInterval(() => { if (!document.hidden) look(); }, LOOK_MS);
  at("drawer").open = !matchMedia("(max-width: 46rem)").matches;
  open(new URLSearchParams(location.search).get("thread"));
})();
