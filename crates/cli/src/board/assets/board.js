// The page of the board. Texts from the server are only ever set as text: nothing here parses markup. Rows are kept by key
// and changed in place, so that the document does not grow, and the focus stays where it is.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

const state = {
  session: null, // what the page may do
  source: null, // the stream
  retry: 0, // failed attempts to open it
  timer: 0,
  silence: 0, // the timer that ends a stream without a message
  paused: false,
  view: null,
  skew: 0, // the server's clock less the browser's
  head: null,
  lock: null, // the lock of the page, as last sent
  pages: { locks: 0, sessions: 0 },
  points: [],
};

// ---- Texts

function setText(node, text) {
  const first = node.firstChild;
  if (first && first === node.lastChild && first.nodeType === Node.TEXT_NODE) {
    if (first.data !== text) first.data = text;
  } else if (node.textContent !== text) {
    node.textContent = text;
  }
}

function show(node, isShown) {
  if (node.hidden === isShown) node.hidden = !isShown;
}

function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

function drawn(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

const now = () => Date.now() + state.skew;

const two = (n) => String(Math.trunc(n)).padStart(2, "0");

// 3m12s, 5h07m: as the program writes it.
function spoken(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m${two(s % 60)}s`;
  if (s < 86400) return `${Math.floor(s / 3600)}h${two((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86400)}d${two((s % 86400) / 3600)}h`;
}

const age = (at) => (at === null ? "" : spoken(now() - at));
const instant = (at) => new Date(at).toLocaleString();
const count = (n, one, many) => `${n} ${n === 1 ? one : many}`;
const orEmpty = (value) => (value === null || value === undefined ? "" : String(value));
const rate = (value) => (value === null || value === undefined ? "" : value === 0 ? "0" : value.toFixed(value < 10 ? 1 : 0));

// ---- Tables

// Rows by key. A column has `text(row)`, and perhaps `live` (it shows an age), `link(row)`, `number`, `warn(row)`, `button`.
class Table {
  constructor(body, columns, key) {
    this.body = $(body);
    this.columns = columns;
    this.key = key;
    this.rows = new Map();
    const table = this.body.closest("table");
    // The narrow style takes the roles away from elements of a table.
    table.setAttribute("role", "table");
    this.body.setAttribute("role", "rowgroup");
    table.tHead.setAttribute("role", "rowgroup");
    table.tHead.rows[0].setAttribute("role", "row");
    this.names = Array.from(table.tHead.rows[0].cells, (cell) => {
      cell.setAttribute("role", "columnheader");
      return cell.textContent;
    });
  }

  update(rows) {
    const focused = document.activeElement;
    const seen = new Set();
    let before = this.body.firstChild;
    for (const row of rows) {
      const key = this.key(row);
      if (seen.has(key)) continue;
      seen.add(key);
      let entry = this.rows.get(key);
      if (!entry) {
        entry = this.create();
        this.rows.set(key, entry);
      }
      entry.row = row;
      this.fill(entry, false);
      if (entry.tr === before) before = before.nextSibling;
      else this.body.insertBefore(entry.tr, before);
    }
    for (const [key, entry] of this.rows) {
      if (!seen.has(key)) {
        entry.tr.remove();
        this.rows.delete(key);
      }
    }
    // A row that moved has lost the focus.
    if (focused && focused !== document.activeElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
  }

  create() {
    const tr = document.createElement("tr");
    tr.setAttribute("role", "row");
    const entry = { tr, row: null, targets: [] };
    this.columns.forEach((column, at) => {
      const cell = document.createElement(at === 0 ? "th" : "td");
      if (at === 0) cell.scope = "row";
      cell.setAttribute("role", at === 0 ? "rowheader" : "cell");
      cell.dataset.column = this.names[at];
      if (column.number) cell.className = "number";
      let target = cell;
      if (column.link) target = cell.appendChild(document.createElement("a"));
      entry.targets.push(target);
      tr.append(cell);
    });
    return entry;
  }

  fill(entry, onlyLive) {
    this.columns.forEach((column, at) => {
      if (onlyLive && !column.live) return;
      const target = entry.targets[at];
      if (column.button) {
        this.fillButton(column, entry, target);
        return;
      }
      setText(target, column.text(entry.row));
      if (column.title) {
        const title = column.title(entry.row);
        if (target.title !== title) target.title = title;
      }
      if (column.link) {
        const link = column.link(entry.row);
        if (target.getAttribute("href") !== link) target.setAttribute("href", link);
      }
      if (column.warn) target.classList.toggle("dead", column.warn(entry.row));
    });
  }

  fillButton(column, entry, cell) {
    const label = column.button(entry.row);
    let button = cell.firstChild;
    if (label === null) {
      if (button) button.remove();
      return;
    }
    if (!button) {
      button = cell.appendChild(make("button"));
      button.type = "button";
      button.addEventListener("click", () => column.press(entry.row, button));
    }
    setText(button, label);
    const name = column.name(entry.row);
    if (button.getAttribute("aria-label") !== name) button.setAttribute("aria-label", name);
  }

  tick() {
    for (const entry of this.rows.values()) this.fill(entry, true);
  }
}

const lockLink = (name) => `#/lock/${encodeURIComponent(name)}`;
const alive = (isAlive) => (isAlive === null ? "" : isAlive ? "alive" : "dead");

const tables = {
  locks: new Table("rows-locks", [
    { text: (row) => row.shown, link: (row) => lockLink(row.name) },
    { text: (row) => row.kind },
    { text: (row) => row.holder ?? (row.held ? "unknown" : "free") },
    { text: (row) => age(row.since), live: true, number: true },
    { text: (row) => String(row.waiting), number: true },
    { text: (row) => age(row.waiting_since), live: true, number: true },
    { text: (row) => rate(row.rate), number: true },
  ], (row) => `${row.kind} ${row.name}`),
  sessions: new Table("rows-sessions", [
    { text: (row) => row.id },
    { text: (row) => alive(row.alive), warn: (row) => !row.alive },
    { text: (row) => orEmpty(row.host) },
    { text: (row) => orEmpty(row.pid), number: true },
    { text: (row) => orEmpty(row.program) },
    { text: (row) => age(row.since), live: true, number: true },
    { text: (row) => String(row.locks), number: true },
    { text: (row) => orEmpty(row.label) },
  ], (row) => row.id),
  holders: new Table("rows-holders", [
    { text: (row) => row.holder },
    { text: (row) => (row.process ?? "") + (row.alive === false ? ", whose session is dead" : ""), warn: (row) => row.alive === false },
    { text: (row) => row.mode + (row.owner === null ? "" : `, owner ${row.owner}`) + (row.count > 1 ? `, ${row.count} times` : "") },
    { text: (row) => age(row.since), live: true, number: true },
    { text: (row) => (row.until === null ? "never" : `in ${spoken(row.until - now())}`), live: true, number: true },
    { text: (row) => orEmpty(row.fence), number: true },
    {
      button: (row) => (state.session.allow_free && row.fence !== null ? "Free…" : null),
      name: (row) => `Free the hold of ${row.holder}, fencing token ${row.fence}…`,
      press: (row, button) => askToFree(row, button),
    },
  ], (row) => row.fence ?? row.holder),
  queue: new Table("rows-queue", [
    { text: (row) => String(row.place), number: true },
    { text: (row) => row.waiter + (row.alive === false ? ", whose session is dead" : ""), warn: (row) => row.alive === false },
    { text: (row) => orEmpty(row.mode) },
    { text: (row) => age(row.since), live: true, number: true },
    { text: (row) => row.session },
  ], (row) => row.key),
  audit: new Table("rows-audit", [
    { text: (row) => instant(row.at) },
    { text: (row) => row.how },
    { text: (row) => row.whose },
    { text: (row) => row.by },
    { text: (row) => orEmpty(row.fence), number: true },
  ], (row) => row.key),
  history: new Table("rows-history", [
    { text: (row) => instant(row.from) },
    { text: (row) => (row.to - row.from < 1000 ? `${row.to - row.from}ms` : spoken(row.to - row.from)), number: true },
    { text: (row) => row.whose },
    { text: (row) => orEmpty(row.fence), number: true },
  ], (row) => row.key),
};

// Entries that are equal but for their place get keys of their own.
function keyed(rows, key) {
  const times = new Map();
  return rows.map((row) => {
    const own = key(row);
    const n = (times.get(own) ?? 0) + 1;
    times.set(own, n);
    return { ...row, key: `${own} ${n}` };
  });
}

// ---- Charts

const CHARTS = [
  { at: 1, title: "Locks held", text: (n) => String(n) },
  { at: 2, title: "Waits", text: (n) => String(n) },
  { at: 3, title: "Longest wait", text: (n) => spoken(n) },
  { at: 4, title: "Changes a second", text: (n) => rate(n) },
];
const WIDTH = 300;
const HEIGHT = 70;
const SHORTEST = 10 * 60 * 1000;
const LONGEST = 60 * 60 * 1000;

for (const chart of CHARTS) {
  const figure = make("figure");
  const caption = figure.appendChild(make("figcaption"));
  caption.append(make("span", chart.title));
  chart.value = caption.appendChild(make("b", "-"));
  chart.svg = figure.appendChild(drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }));
  chart.area = chart.svg.appendChild(drawn("path", { class: "chart-area", d: "" }));
  chart.svg.append(drawn("path", { class: "chart-base", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }));
  chart.line = chart.svg.appendChild(drawn("path", { class: "chart-line", d: "" }));
  const scale = figure.appendChild(make("div", undefined, "scale"));
  chart.start = scale.appendChild(make("span"));
  chart.most = scale.appendChild(make("span"));
  scale.append(make("span", "now"));
  $("charts").append(figure);
}

function drawCharts() {
  const points = state.points;
  const end = points.length ? points[points.length - 1][0] : now();
  const span = Math.min(LONGEST, Math.max(SHORTEST, points.length ? end - points[0][0] : 0));
  for (const chart of CHARTS) {
    const values = points.map((point) => point[chart.at]).filter((value) => value !== null);
    const most = values.length ? Math.max(...values) : 0;
    const last = points.length ? points[points.length - 1][chart.at] : null;
    const top = Math.max(most, 1e-9) * 1.08;
    let line = "", area = "", from = null, x = 0;
    const close = () => { if (from !== null) area += `L${x.toFixed(1)} ${HEIGHT}L${from.toFixed(1)} ${HEIGHT}Z`; from = null; };
    for (const point of points) {
      const value = point[chart.at];
      if (value === null) { close(); continue; }
      const at = WIDTH * (1 - (end - point[0]) / span);
      if (at < 0) continue;
      x = at;
      const place = `${x.toFixed(1)} ${(HEIGHT * (1 - value / top)).toFixed(1)}`;
      line += (from === null ? "M" : "L") + place;
      area += (from === null ? "M" : "L") + place;
      if (from === null) from = x;
    }
    close();
    chart.line.setAttribute("d", line);
    chart.area.setAttribute("d", area);
    setText(chart.value, last === null ? "-" : chart.text(last));
    setText(chart.start, `−${Math.round(span / 60000)} min`);
    setText(chart.most, `most ${chart.text(most)}`);
    chart.svg.setAttribute("aria-label", last === null
      ? `${chart.title}: not known`
      : `${chart.title}: now ${chart.text(last)}, at most ${chart.text(most)} in ${Math.round(span / 60000)} minutes`);
  }
}

// ---- The graph

const NODE_WIDTH = 210;
const NODE_HEIGHT = 34;
const LAYER = 272;
const ROW = 66;
const MARGIN = 34;

const shortened = (text, most) => {
  const all = Array.from(text);
  return all.length > most ? all.slice(0, most - 1).join("") + "…" : text;
};

function drawGraph(graph) {
  const svg = $("graph");
  const width = graph.layers ? (graph.layers - 1) * LAYER + NODE_WIDTH + 2 * MARGIN : 0;
  const height = graph.rows ? (graph.rows - 1) * ROW + NODE_HEIGHT + 2 * MARGIN : 0;
  const nodes = document.createDocumentFragment();
  const place = (node) => ({ x: MARGIN + node.layer * LAYER, y: MARGIN + node.row * ROW });
  for (const edge of graph.edges) nodes.append(...drawEdge(edge, place(graph.nodes[edge.from]), place(graph.nodes[edge.to])));
  for (const node of graph.nodes) {
    const { x, y } = place(node);
    const group = drawn("g", { class: `node${node.is_lock ? " lock" : ""}${node.in_cycle ? " cycle" : ""}` });
    group.append(drawn("rect", { x, y, width: NODE_WIDTH, height: NODE_HEIGHT, rx: node.is_lock ? 3 : NODE_HEIGHT / 2 }));
    const text = drawn("text", { x: x + NODE_WIDTH / 2, y: y + NODE_HEIGHT / 2 + 4.5, "text-anchor": "middle" });
    text.textContent = (node.in_cycle ? "↻ " : "") + shortened(node.label, node.in_cycle ? 24 : 27);
    const title = drawn("title", {});
    title.textContent = node.label;
    group.append(title, text);
    nodes.append(group);
  }
  svg.replaceChildren(nodes);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  show(svg.parentNode, graph.nodes.length > 0);
  show($("graph-legend"), graph.nodes.length > 0);
}

function drawEdge(edge, from, to) {
  const isBack = from.x >= to.x;
  let start, end, path;
  if (isBack) {
    // Below both, and back to the left.
    start = { x: from.x + NODE_WIDTH / 2, y: from.y + NODE_HEIGHT };
    end = { x: to.x + NODE_WIDTH / 2, y: to.y + NODE_HEIGHT + 8 };
    const low = Math.max(start.y, end.y) + 22;
    path = `M${start.x} ${start.y}C${start.x} ${low} ${end.x} ${low} ${end.x} ${end.y}`;
  } else {
    start = { x: from.x + NODE_WIDTH, y: from.y + NODE_HEIGHT / 2 };
    end = { x: to.x - 8, y: to.y + NODE_HEIGHT / 2 };
    const middle = (start.x + end.x) / 2;
    path = `M${start.x} ${start.y}C${middle} ${start.y} ${middle} ${end.y} ${end.x} ${end.y}`;
  }
  const kind = `${edge.is_wait ? " wait" : ""}${edge.in_cycle ? " cycle" : ""}`;
  const line = drawn("path", { class: `edge${kind}`, d: path });
  const title = drawn("title", {});
  title.textContent = (edge.is_wait ? "waits for" : "held by") + (edge.in_cycle ? ", part of a deadlock" : "");
  line.append(title);
  const parts = [line];
  // The double line.
  if (edge.in_cycle) parts.push(drawn("path", { class: "edge inner", d: path }));
  const tip = isBack
    ? `M${end.x} ${end.y - 8}L${end.x - 5} ${end.y + 2}L${end.x + 5} ${end.y + 2}Z`
    : `M${end.x + 8} ${end.y}L${end.x - 2} ${end.y - 5}L${end.x - 2} ${end.y + 5}Z`;
  parts.push(drawn("path", { class: `arrow${edge.in_cycle ? " cycle" : ""}`, d: tip }));
  return parts;
}

// A wait as a sentence, with a link to the lock. Its age is in an element of its own.
function waitLine(wait) {
  const item = make("li", undefined, "waits-text");
  item.append(make("span", wait.waiter, "text"), " waits for ");
  const link = item.appendChild(make("a", wait.shown, "text"));
  link.setAttribute("href", lockLink(wait.name));
  const holders = wait.holders.length ? wait.holders.join(", ") : "nothing that is known";
  item.append(", held by ", make("span", holders, "text"), ", since ", make("span", instant(wait.since)));
  return item;
}

function showGraph(graph) {
  drawGraph(graph);
  const focused = document.activeElement?.getAttribute("href");
  const inside = $("view-waits").contains(document.activeElement);
  const cycles = graph.cycles.map((waits, at) => {
    const box = make("div", undefined, "deadlock");
    box.append(make("h3", `↻ Deadlock ${at + 1} of ${graph.cycles.length}: each waits for a lock that the next one holds`));
    const list = box.appendChild(make("ol"));
    list.append(...waits.map(waitLine));
    return box;
  });
  $("cycles").replaceChildren(...cycles);
  $("waits").replaceChildren(...graph.waits.map(waitLine));
  if (inside && focused) {
    Array.from($("view-waits").querySelectorAll("a")).find((link) => link.getAttribute("href") === focused)?.focus({ preventScroll: true });
  }
  show($("waits-heading"), graph.waits.length > 0);
  show($("empty-waits"), graph.waits.length === 0);
  const more = [];
  if (graph.not_drawn) more.push(`${count(graph.not_drawn, "wait is", "waits are")} listed, and not drawn.`);
  if (graph.not_listed) more.push(`${count(graph.not_listed, "wait or hold is", "waits or holds are")} left out.`);
  setText($("graph-more"), more.join(" "));
  show($("graph-more"), more.length > 0);
}

// ---- What is sent

function showHead(head) {
  state.head = head;
  setText($("total-held"), String(head.held));
  setText($("total-waiting"), String(head.waiting));
  setText($("total-rate"), `${rate(head.changes_per_second)} a second`);
  setText($("total-alive"), String(head.alive));
  setText($("total-dead"), String(head.dead));
  setText($("total-cycles"), String(head.cycles));
  $("total-cycles-box").classList.toggle("bad", head.cycles > 0);
  const trouble = head.trouble === null ? ""
    : `The store does not answer: ${head.trouble}. ${head.read_at === null ? "" : `Shown is what was known at ${new Date(head.read_at).toLocaleTimeString()}.`}`;
  setText($("trouble"), trouble);
  show($("trouble"), trouble !== "");
  setText($("incomplete"), head.incomplete === null ? "" : `Not everything is shown: ${head.incomplete}`);
  show($("incomplete"), head.incomplete !== null);
}

function showList(kind, content, what) {
  tables[kind].update(content.rows);
  const empty = content.all === 0 ? `There are no ${what}.` : `None of ${content.all} ${what} matches the filter.`;
  setText($(`empty-${kind}`), empty);
  show($(`empty-${kind}`), content.total === 0);
  state.pages[kind] = content.page;
  const box = $(`pages-${kind}`);
  show(box, content.pages > 1);
  const [back, text, next] = box.children;
  const first = content.page * 100 + 1;
  setText(text, `${first} to ${first + content.rows.length - 1} of ${content.total}`);
  back.disabled = content.page === 0;
  next.disabled = content.page + 1 >= content.pages;
}

function showContent(content) {
  if (content.view === "locks") showList("locks", content, "locks");
  else if (content.view === "sessions") showList("sessions", content, "sessions");
  else showGraph(content);
}

function showLock(lock) {
  if (state.view?.name !== lock.name) return;
  const failed = lock.failure !== undefined;
  setText($("lock-failure"), failed ? lock.failure : (lock.incomplete === null ? "" : `Not everything is shown: ${lock.incomplete}`));
  show($("lock-failure"), $("lock-failure").textContent !== "");
  if (failed) return;
  state.lock = lock;
  setText($("title-lock"), lock.shown);
  const words = [lock.kind];
  if (lock.capacity !== null) words.push(`${lock.capacity} taken`);
  words.push(lock.in_cooldown ? "no longer held, but in cooldown: no client can acquire it yet" : lock.held ? "held" : "free");
  if (lock.blocked_ms !== null) words.push(`blocked for ${spoken(lock.blocked_ms)}: too few nodes of the quorum can grant it`);
  words.push(`${count(lock.waiting, "waiter", "waiters")}`);
  if (lock.more_holders) words.push(`${lock.more_holders} more holders are not listed`);
  setText($("lock-state"), words.join(", "));
  tables.holders.update(lock.holders);
  show($("empty-holders"), lock.holders.length === 0);
  tables.queue.update(keyed(lock.queue.map((row, at) => ({ ...row, place: at + 1 })), (row) => `${row.session} ${row.mode} ${row.since}`));
  setText($("empty-queue"), lock.more_waiting ? `and ${lock.more_waiting} more` : "Nothing waits.");
  show($("empty-queue"), lock.queue.length === 0 || lock.more_waiting > 0);
  tables.audit.update(keyed(lock.audit, (row) => `${row.at} ${row.fence}`));
  show($("empty-audit"), lock.audit.length === 0);
  tables.history.update(keyed(lock.history, (row) => `${row.from} ${row.fence}`));
  show($("empty-history"), lock.history.length === 0);
}

// ---- The stream

function setConnection(to, text) {
  const node = $("connection");
  if (node.dataset.state === to) return;
  node.dataset.state = to;
  setText(node, text);
}

function query() {
  const view = state.view;
  const words = [`view=${view.kind === "waits" ? "graph" : view.kind}`];
  if (view.kind === "lock") words.push(`name=${encodeURIComponent(view.name)}`);
  if (view.kind === "locks") words.push(`sort=${$("sort").value}`);
  if (view.kind === "locks" || view.kind === "sessions") {
    words.push(`filter=${encodeURIComponent($(`filter-${view.kind}`).value)}`, `page=${state.pages[view.kind]}`);
  }
  return words.join("&");
}

// The board sends something every ten seconds at least. A connection that is silently dead reports no error.
const SILENCE_MS = 35000;

function heard(source) {
  clearTimeout(state.silence);
  state.silence = setTimeout(() => { if (state.source === source) streamLost(); }, SILENCE_MS);
}

function streamLost() {
  closeStream();
  setConnection("lost", "The board does not answer; trying again");
  state.retry = Math.min(state.retry + 1, 5);
  state.timer = setTimeout(reconnect, 500 * 2 ** (state.retry - 1));
}

function closeStream() {
  clearTimeout(state.timer);
  clearTimeout(state.silence);
  if (state.source) state.source.close();
  state.source = null;
}

function openStream() {
  closeStream();
  if (!state.session || state.paused || document.hidden || !state.view) return;
  const source = new EventSource(`/api/events?${query()}`);
  state.source = source;
  heard(source);
  source.addEventListener("beat", () => { if (state.source === source) heard(source); });
  const on = (name, handle) => source.addEventListener(name, (event) => {
    if (state.source !== source) return;
    heard(source);
    const message = JSON.parse(event.data);
    state.skew = message.now - Date.now();
    handle(message);
  });
  on("head", showHead);
  on("content", showContent);
  on("lock", showLock);
  on("charts", (message) => { state.points = message.points; drawCharts(); });
  source.addEventListener("open", () => {
    if (state.source !== source) return;
    state.retry = 0;
    setConnection("live", "live");
  });
  source.addEventListener("error", () => {
    if (state.source === source) streamLost();
  });
}

// The board may have been started again, with another token.
async function reconnect() {
  try {
    const response = await fetch("/api/session");
    if (response.status === 401) { signedOut(); return; }
    if (response.ok) state.session = await response.json();
  } catch { /* not there yet: the stream says so, too */ }
  openStream();
}

// ---- Views

const VIEWS = ["locks", "sessions", "waits", "lock"];
const TITLES = { locks: "Locks", sessions: "Sessions", waits: "What waits for what" };

function parseView() {
  const words = location.hash.replace(/^#\/?/, "");
  if (words.startsWith("lock/")) {
    try { return { kind: "lock", name: decodeURIComponent(words.slice(5)) }; } catch { return { kind: "locks" }; }
  }
  return { kind: VIEWS.includes(words) && words !== "lock" ? words : "locks" };
}

function route(isFirst) {
  const old = state.view;
  state.view = parseView();
  const { kind, name } = state.view;
  if (kind === "lock" && (old?.kind !== "lock" || old.name !== name)) {
    state.lock = null;
    setText($("title-lock"), "…");
    setText($("lock-state"), "");
    setText($("free-result"), "");
    for (const table of [tables.holders, tables.queue, tables.audit, tables.history]) table.update([]);
    for (const part of ["holders", "queue", "audit", "history"]) show($(`empty-${part}`), false);
    show($("lock-failure"), false);
  }
  for (const view of VIEWS) show($(`view-${view}`), view === kind);
  for (const view of ["locks", "sessions", "waits"]) {
    const isHere = view === kind || (view === "locks" && kind === "lock");
    if (isHere) $(`nav-${view}`).setAttribute("aria-current", view === kind ? "page" : "true");
    else $(`nav-${view}`).removeAttribute("aria-current");
  }
  document.title = kind === "lock" ? "Lock - Leasehold" : `${TITLES[kind]} - Leasehold`;
  if (!isFirst) {
    $(`title-${kind}`).focus();
    window.scrollTo(0, 0);
  }
  openStream();
}

function setPaused(isPaused) {
  state.paused = isPaused;
  $("pause").setAttribute("aria-pressed", String(isPaused));
  setText($("pause"), isPaused ? "Go on" : "Pause");
  if (isPaused) {
    closeStream();
    setConnection("paused", "paused");
  } else {
    setConnection("connecting", "connecting");
    openStream();
  }
}

// ---- Freeing a lock

let asked = null;

function askToFree(row, button) {
  asked = { name: state.lock.name, fence: row.fence, shown: state.lock.shown, holder: row.process ?? row.holder, button };
  setText($("free-name"), asked.shown);
  setText($("free-holder"), asked.holder);
  setText($("free-fence"), String(asked.fence));
  setText($("free-waiting"), `${count(state.lock.waiting, "client waits", "clients wait")} for it.`);
  setText($("free-failure"), "");
  $("free-yes").disabled = false;
  $("free").showModal();
}

async function freeAsked() {
  const { name, fence, shown, holder } = asked;
  $("free-yes").disabled = true;
  let failure;
  try {
    const response = await fetch("/api/free", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ name, fence }),
    });
    if (response.status === 401) { $("free").close(); signedOut(); return; }
    failure = response.ok ? null : (await response.json()).error;
  } catch {
    failure = "The board did not answer: look again whether the lock is free.";
  }
  if (failure !== null) {
    setText($("free-failure"), failure);
    $("free-yes").disabled = false;
    return;
  }
  $("free").close();
  setText($("free-result"), `${shown} was taken from ${holder}, fencing token ${fence}.`);
  openStream();
}

// ---- Signing in

function signedOut() {
  closeStream();
  state.session = null;
  show($("main"), false);
  show($("sign-in"), true);
  setConnection("signed-out", "not signed in");
  $("token").focus();
}

async function signIn(token) {
  const response = await fetch("/api/sign-in", {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ token }),
  });
  return response.ok;
}

const TOKEN_LINK = /^#token=(.+)$/;

async function start() {
  const match = TOKEN_LINK.exec(location.hash);
  if (match) {
    // The token stays in no history and in no address.
    history.replaceState(null, "", "/#/locks");
    try { await signIn(decodeURIComponent(match[1])); } catch { /* it does not answer, or this is no token */ }
  }
  for (;;) {
    try {
      const response = await fetch("/api/session");
      if (response.status === 401) { signedOut(); return; }
      if (response.ok) { state.session = await response.json(); break; }
    } catch { /* not there yet */ }
    setConnection("lost", "The board does not answer; trying again");
    await new Promise((done) => setTimeout(done, 1000));
  }
  setText($("store"), state.session.store);
  show($("sign-in"), false);
  show($("main"), true);
  route(true);
}

// ---- Events

function delayed(handle, ms) {
  let timer = 0;
  return () => { clearTimeout(timer); timer = setTimeout(handle, ms); };
}

for (const kind of ["locks", "sessions"]) {
  $(`filter-${kind}`).addEventListener("input", delayed(() => { state.pages[kind] = 0; openStream(); }, 250));
  const box = $(`pages-${kind}`);
  const button = (text, by) => {
    const made = make("button", text);
    made.type = "button";
    made.addEventListener("click", () => { state.pages[kind] += by; openStream(); });
    return made;
  };
  box.append(button("Back", -1), make("span"), button("Next", 1));
}
$("sort").addEventListener("change", () => { state.pages.locks = 0; openStream(); });
$("pause").addEventListener("click", () => setPaused(!state.paused));
$("free-no").addEventListener("click", () => $("free").close());
$("free-yes").addEventListener("click", freeAsked);
$("free").addEventListener("close", () => { if (asked?.button.isConnected) asked.button.focus(); else $("title-lock").focus(); });
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
$("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const isIn = await signIn($("token").value).catch(() => null);
  setText($("sign-in-failure"), isIn ? "" : isIn === null ? "The board does not answer." : "This is not the token.");
  if (!isIn) return;
  $("token").value = "";
  setConnection("connecting", "connecting");
  start();
});
window.addEventListener("hashchange", () => {
  // The link of a board that was started again, opened in this page.
  if (TOKEN_LINK.test(location.hash)) { closeStream(); start(); }
  else if (state.session) route(false);
});
// A page that is not seen takes no connection: a browser has six for a site.
document.addEventListener("visibilitychange", () => { if (document.hidden) closeStream(); else openStream(); });

const KEYS = "leasehold-keys";
const keysAreOn = () => { try { return localStorage.getItem(KEYS) !== "off"; } catch { return true; } };
$("keys-on").checked = keysAreOn();
$("keys-on").addEventListener("change", () => {
  try { localStorage.setItem(KEYS, $("keys-on").checked ? "on" : "off"); } catch { /* until the page is left */ }
});
$("help-button").addEventListener("click", () => $("help").showModal());
$("help-close").addEventListener("click", () => $("help").close());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || !state.session || !$("keys-on").checked) return;
  if (event.target instanceof Element && event.target.closest("input, select, textarea, dialog[open]")) return;
  const views = { l: "#/locks", s: "#/sessions", w: "#/waits" };
  if (views[event.key]) location.hash = views[event.key];
  else if (event.key === "p") setPaused(!state.paused);
  else if (event.key === "?") $("help").showModal();
  else if (event.key === "/" && (state.view.kind === "locks" || state.view.kind === "sessions")) $(`filter-${state.view.kind}`).focus();
  else return;
  event.preventDefault();
});

setInterval(() => {
  if (document.hidden || !state.source || !state.view) return;
  const shown = { locks: ["locks"], sessions: ["sessions"], waits: [], lock: ["holders", "queue"] }[state.view.kind];
  for (const name of shown) tables[name].tick();
}, 1000);

start();
