// Draws the part of a run that is in view. All texts are set as text.
//
// 1. Nothing outside of the view has an element, so that a long run is drawn as fast as a short one.
// 2. A selection is a set of entries: the arrows, bars, bands and rows that name one of them are marked.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const $ = (id) => document.getElementById(id);
  const KIND = ["request", "reply", "notification"], BAR = ["guard", "hold", "foreign"];

  // The places in the arrays of the data.
  const violation = data.violation && { at: data.violation[0], check: data.violation[1], text: data.violation[2] };
  const lanes = data.lanes.map(([name, isServer]) => ({ name, isServer: isServer === 1, rows: 0, from: Infinity, to: -1 }));
  const entries = data.entries.map(([at, lane, kind, text]) => ({ at, lane, kind, text }));
  const last = entries.length ? entries[entries.length - 1].at : 0;
  const end = Math.max(last, violation ? violation.at : 0, 1);
  const arrows = data.arrows.map(([kind, from, sent, to, at, fate, stale, of]) =>
    ({ kind, from, sent, to, at, fate, stale, of, until: at === null ? sent : at }));
  // A bar goes on beyond the end of the run for as long as the hold would have lasted.
  const bars = data.bars.map(([lane, lock, kind, from, until, name, about, of]) =>
    ({ lane, lock, kind, from, until: until === null ? Infinity : Math.max(from, until), name, about, of, row: 0 }));
  const bands = data.bands.map(([lane, from, until, name, of]) =>
    ({ lane, from, until: until === null ? end : until, name, of, isLink: /connection|cut off/.test(name) }));

  for (const entry of entries) {
    if (entry.lane === null) continue;
    const lane = lanes[entry.lane];
    lane.from = Math.min(lane.from, entry.at);
    lane.to = Math.max(lane.to, entry.at);
  }
  // Holds that overlap in one lane are below one another.
  const rowEnds = lanes.map(() => []);
  for (const bar of [...bars].sort((a, b) => a.from - b.from)) {
    const ends = rowEnds[bar.lane], lane = lanes[bar.lane];
    let row = ends.findIndex((until) => until <= bar.from);
    if (row < 0) row = ends.length;
    ends[row] = Math.min(bar.until, end + 1);
    bar.row = row;
    lane.rows = Math.max(lane.rows, ends.length);
    lane.from = Math.min(lane.from, bar.from);
    lane.to = Math.max(lane.to, Math.min(bar.until, end));
  }
  // The guards that the violation names, by their numbers or by their tokens.
  const named = violation ? violation.text.match(/GuardId\(\d+\)|\bg\d+\b|guard \d+/g) || [] : [];
  const guards = new Set(named.map((name) => (name.startsWith("guard") ? "" : "g") + name.match(/\d+/)[0]));
  for (const bar of bars) {
    bar.isCulprit = bar.kind === 0 && (bar.name + " " + bar.about).split(/[ ,]/).some((word) => guards.has(word));
  }

  const LABEL = 76, ROW = 17, BASE = 12, PAD = 6;
  const MOST_ARROWS = 1500, MOST_DOTS = 4000;
  const LONGEST = end * 1.06 + 1000, SHORTEST = 200;
  const view = { from: 0, to: LONGEST };
  let selected = new Set(), chosen = -1;

  const seconds = (us, digits = 6) => (us / 1e6).toFixed(digits);
  const el = (name, attributes, parent, text) => {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  };
  const isSelected = (of) => of.some((entry) => selected.has(entry));

  // ---- the drawing

  let width = 800;
  const x = (at) => LABEL + ((at - view.from) / (view.to - view.from)) * (width - LABEL);
  const at = (px) => view.from + ((px - LABEL) / (width - LABEL)) * (view.to - view.from);
  const clamp = (px) => Math.max(LABEL - 20, Math.min(width + 20, px));

  function step() {
    const raw = ((view.to - view.from) / (width - LABEL)) * 110;
    const power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((times) => times * power).find((size) => size >= raw);
  }

  function ticks() {
    const size = step(), found = [];
    for (let tick = Math.ceil(view.from / size) * size; tick <= view.to; tick += size) found.push(tick);
    return { found, digits: Math.max(0, Math.min(6, 6 - Math.floor(Math.log10(size) + 1e-9))) };
  }

  /** Where each visible lane is: its top, the line that messages end at, and its height. */
  function places() {
    const silent = $("silent").checked, found = new Map();
    let top = 0;
    const heightOf = (lane) => BASE * 2 + Math.max(1, lane.rows) * ROW + PAD;
    const order = lanes.map((_, index) => index).sort((a, b) => lanes[b].isServer - lanes[a].isServer || a - b);
    const shown = order.filter((index) => silent || lanes[index].isServer || (lanes[index].from <= view.to && lanes[index].to >= view.from));
    // Lanes share the room that is left, so that messages are long enough to be told apart.
    const free = $("scroll").clientHeight - 2 - shown.reduce((sum, index) => sum + heightOf(lanes[index]), 0);
    const extra = Math.max(0, Math.min(48, Math.floor(free / Math.max(1, shown.length))));
    for (const index of shown) {
      const lane = lanes[index], height = heightOf(lane) + extra;
      // Messages end at the side that faces the other lanes.
      const base = lane.isServer ? top + height - BASE : top + BASE;
      const bars = lane.isServer ? top + PAD : top + BASE * 2;
      found.set(index, { top, height, base, bars });
      top += height;
    }
    found.height = top;
    return found;
  }

  function axis(found, digits) {
    const svg = el("svg", { width, height: 24 });
    for (const tick of found) {
      if (x(tick) < LABEL) continue;
      el("line", { class: "tick", x1: x(tick), x2: x(tick), y1: 17, y2: 24 }, svg);
      el("text", { class: "tick-label", x: x(tick) + 3, y: 15 }, svg, seconds(tick, digits) + " s");
    }
    el("rect", { class: "label-back", x: 0, y: 0, width: LABEL, height: 24 }, svg);
    if (violation && violation.at >= view.from && violation.at <= view.to) {
      const name = violation.check, wide = name.length * 6.6 + 12;
      const left = Math.max(LABEL, Math.min(width - wide, x(violation.at) - wide / 2));
      el("rect", { class: "violation-flag", x: left, y: 3, width: wide, height: 18, rx: 3 }, svg);
      el("text", { class: "violation-text", x: left + 6, y: 16 }, svg, name);
    }
    $("axis").replaceChildren(svg);
  }

  function drawBand(svg, band, spots) {
    const spot = spots.get(band.lane);
    if (band.lane !== null && !spot) return;
    const left = clamp(x(band.from)), right = Math.max(left + 2, clamp(x(band.until)));
    const [top, height] = spot ? [spot.top, spot.height] : [0, spots.height];
    const mark = isSelected(band.of) ? " is-selected" : "";
    let made;
    if (band.isLink) {
      const y = spot && lanes[band.lane].isServer ? top + 3 : top + height - 3;
      made = el("line", { class: "band is-link" + mark, x1: left, x2: right, y1: y, y2: y }, svg);
    } else {
      made = el("rect", { class: "band" + mark, x: left, y: top, width: right - left, height }, svg);
    }
    el("title", {}, made, band.name);
    pick(made, band.of);
    if (!band.isLink && right - left > band.name.length * 5.6 + 8) {
      const y = spot && lanes[band.lane].isServer ? spot.base - 6 : top + height - 5;
      el("text", { class: "note", x: Math.max(left, LABEL) + 4, y }, svg, band.name);
    }
  }

  function drawBar(svg, bar, spots) {
    const spot = spots.get(bar.lane);
    if (!spot) return;
    const left = clamp(x(bar.from)), right = Math.max(left + 2, clamp(x(bar.until)));
    const y = spot.bars + bar.row * ROW;
    const classes = ["bar", BAR[bar.kind], "l" + (bar.lock % 4)];
    if (bar.isCulprit) classes.push("is-culprit");
    if (isSelected(bar.of)) classes.push("is-selected");
    const made = el("rect", { class: classes.join(" "), x: left, y, width: right - left, height: ROW - 4 }, svg);
    const until = bar.until === Infinity ? "without end" : "until " + seconds(bar.until);
    el("title", {}, made, `${bar.about}\nfrom ${seconds(bar.from)} ${until}`);
    pick(made, bar.of);
    const from = Math.max(left, LABEL), room = Math.floor((right - from - 8) / 6);
    if (room >= Math.min(3, bar.name.length)) {
      const text = bar.name.length <= room ? bar.name : bar.name.slice(0, room - 1) + "…";
      el("text", { class: bar.kind === 0 ? "on-guard" : "on-hold", x: from + 4, y: y + 10.5 }, svg, text);
    }
  }

  function cross(svg, px, y, mark) {
    el("path", { class: "cross" + mark, d: `M${px - 4} ${y - 4}l8 8m0 -8l-8 8` }, svg);
  }

  function drawArrow(svg, arrow, spots) {
    const from = spots.get(arrow.from), to = spots.get(arrow.to);
    if (!from || !to) return;
    const x1 = x(arrow.sent), y1 = from.base;
    let x2 = arrow.at === null ? x1 + 16 : x(arrow.at), y2 = to.base;
    // A lost message ends between the two.
    const part = arrow.fate === 0 ? 1 : 0.55;
    if (arrow.at === null || arrow.fate === 1) {
      y2 = y1 + (y2 - y1) * part;
      x2 = arrow.at === null ? x2 : x1 + (x2 - x1) * part;
    }
    const classes = [KIND[arrow.kind]];
    if (arrow.stale) classes.push("is-stale");
    if (arrow.fate === 1) classes.push("is-lost");
    if (arrow.fate === 2) classes.push("is-open");
    const mark = isSelected(arrow.of) ? " is-selected" : "";
    el("line", { class: "arrow " + classes.join(" ") + mark, x1, y1, x2, y2 }, svg);
    if (arrow.fate === 0) {
      const length = Math.hypot(x2 - x1, y2 - y1) || 1, dx = (x2 - x1) / length, dy = (y2 - y1) / length;
      const points = [[x2, y2], [x2 - dx * 8 - dy * 3, y2 - dy * 8 + dx * 3], [x2 - dx * 8 + dy * 3, y2 - dy * 8 - dx * 3]];
      el("polygon", { class: "head " + classes.join(" "), points: points.map((p) => p.map((n) => n.toFixed(1)).join(",")).join(" ") }, svg);
    } else if (arrow.fate === 1) {
      cross(svg, x2, y2, mark);
    }
    const hit = el("line", { class: "hit", x1, y1, x2, y2 }, svg);
    const fate = ["arrived " + seconds(arrow.until), "lost, or no longer awaited", "under way at the end"][arrow.fate];
    el("title", {}, hit, `${KIND[arrow.kind]}, sent ${seconds(arrow.sent)}, ${fate}\n${entries[arrow.of[0]] ? entries[arrow.of[0]].text : ""}`);
    pick(hit, arrow.of);
  }

  function pick(made, of) {
    made.addEventListener("click", () => { if (!moved) select(of, true); });
  }

  function draw() {
    width = Math.max(300, $("scroll").clientWidth);
    const { found, digits } = ticks(), spots = places();
    axis(found, digits);
    const height = Math.max(spots.height, $("scroll").clientHeight - 2);
    const svg = el("svg", { width, height });
    const isIn = (from, to) => from <= view.to && to >= view.from;
    for (const tick of found) el("line", { class: "tick", x1: x(tick), x2: x(tick), y1: 0, y2: height }, svg);
    for (const spot of spots.values()) {
      el("line", { class: "lane-line", x1: 0, x2: width, y1: spot.top + spot.height, y2: spot.top + spot.height }, svg);
      el("line", { class: "tick", x1: LABEL, x2: width, y1: spot.base, y2: spot.base }, svg);
    }
    for (const band of bands) if (isIn(band.from, band.until)) drawBand(svg, band, spots);
    for (const bar of bars) if (isIn(bar.from, bar.until)) drawBar(svg, bar, spots);
    let note = "";
    if ($("messages").checked) {
      const shown = arrows.filter((arrow) => isIn(arrow.sent, arrow.until));
      if (shown.length > MOST_ARROWS) note = `${shown.length} messages: zoom in to see them`;
      else for (const arrow of shown) drawArrow(svg, arrow, spots);
    }
    const [first, after] = [firstAt(view.from), firstAt(view.to + 1)];
    if (after - first <= MOST_DOTS) {
      for (let index = first; index < after; index++) {
        const entry = entries[index], spot = spots.get(entry.lane);
        const mark = selected.has(index) ? " is-selected" : "";
        const attributes = { class: `dot k${entry.kind}${mark}`, cx: x(entry.at), cy: spot ? spot.base : 5, r: 3 };
        const dot = el("circle", attributes, svg);
        el("title", {}, dot, `${seconds(entry.at)}  ${entry.text}`);
        pick(dot, [index]);
      }
    } else if (!note) note = `${after - first} events: zoom in to see them`;
    if (violation && isIn(violation.at, violation.at)) {
      el("line", { class: "violation", x1: x(violation.at), x2: x(violation.at), y1: 0, y2: height }, svg);
    }
    el("rect", { class: "label-back", x: 0, y: 0, width: LABEL, height }, svg);
    for (const [index, spot] of spots) {
      el("text", { class: "lane-name", x: 10, y: spot.top + spot.height / 2 + 4 }, svg, lanes[index].name);
      el("line", { class: "lane-line", x1: 0, x2: LABEL, y1: spot.top + spot.height, y2: spot.top + spot.height }, svg);
    }
    if (note) el("text", { class: "note", x: LABEL + 10, y: height - 8 }, svg, note);
    $("chart").replaceChildren(svg);
    $("range").textContent = `${seconds(Math.max(0, view.from), 3)} to ${seconds(Math.min(view.to, end), 3)} s of ${seconds(end, 3)} s`;
    overview();
    rows();
  }

  /** The first entry that is not before a time. */
  function firstAt(time) {
    let low = 0, high = entries.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (entries[middle].at < time) low = middle + 1; else high = middle;
    }
    return low;
  }

  // ---- the whole run, small

  function overview() {
    const canvas = $("overview"), scale = window.devicePixelRatio || 1;
    const [w, h] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = w * scale;
    canvas.height = h * scale;
    const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    pen.scale(scale, scale);
    const px = (time) => (time / LONGEST) * w;
    pen.globalAlpha = 0.25;
    pen.fillStyle = color("--fault");
    for (const band of bands) if (!band.isLink) pen.fillRect(px(band.from), 0, Math.max(1, px(band.until) - px(band.from)), h);
    const counts = new Array(Math.ceil(w)).fill(0);
    for (const entry of entries) counts[Math.min(counts.length - 1, Math.floor(px(entry.at)))]++;
    const most = Math.max(...counts, 1);
    pen.globalAlpha = 0.75;
    pen.fillStyle = color("--faint");
    counts.forEach((count, index) => {
      if (count) pen.fillRect(index, h, 1, -Math.max(2, Math.sqrt(count / most) * (h - 6)));
    });
    pen.globalAlpha = 1;
    if (violation) {
      pen.fillStyle = color("--bad");
      pen.fillRect(px(violation.at) - 1, 0, 2, h);
    }
    const [left, right] = [px(view.from), Math.max(px(view.to), px(view.from) + 3)];
    pen.globalAlpha = 0.16;
    pen.fillStyle = color("--accent");
    pen.fillRect(left, 0, right - left, h);
    pen.globalAlpha = 1;
    pen.strokeStyle = color("--accent");
    pen.strokeRect(left + 0.5, 0.5, Math.max(2, right - left - 1), h - 1);
  }

  // ---- the list

  const HEIGHT = 21;
  let shownEntries = entries.map((_, index) => index);

  function filter() {
    const words = $("filter").value.toLowerCase();
    shownEntries = entries.map((_, index) => index)
      .filter((index) => !words || entries[index].text.toLowerCase().includes(words));
    $("list").scrollTop = 0;
    if (chosen >= 0) reveal(chosen); else rows();
  }

  function rows() {
    const list = $("list"), host = $("rows"), fragment = document.createDocumentFragment();
    host.style.height = shownEntries.length * HEIGHT + "px";
    const first = Math.max(0, Math.floor(list.scrollTop / HEIGHT) - 10);
    const after = Math.min(shownEntries.length, first + Math.ceil(list.clientHeight / HEIGHT) + 20);
    for (let place = first; place < after; place++) {
      const index = shownEntries[place], entry = entries[index];
      const row = document.createElement("div");
      row.className = `row k${entry.kind}`;
      if (index === chosen) row.classList.add("is-selected");
      else if (selected.has(index)) row.classList.add("is-related");
      else if (violation && index === entries.length - 1) row.classList.add("is-last");
      if (entry.at < view.from || entry.at > view.to) row.classList.add("is-outside");
      row.style.top = place * HEIGHT + "px";
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(index === chosen));
      for (const [name, text] of [["time", seconds(entry.at).padStart(10)], ["text", entry.text]]) {
        const span = document.createElement("span");
        span.className = name;
        span.textContent = text;
        row.appendChild(span);
      }
      row.addEventListener("click", () => choose(index));
      fragment.appendChild(row);
    }
    host.replaceChildren(fragment);
    $("count").textContent = shownEntries.length === entries.length
      ? `${entries.length} events` : `${shownEntries.length} of ${entries.length}`;
  }

  function reveal(index) {
    const list = $("list"), place = shownEntries.indexOf(index);
    if (place >= 0) {
      const top = place * HEIGHT;
      if (top < list.scrollTop + HEIGHT || top > list.scrollTop + list.clientHeight - 2 * HEIGHT) {
        list.scrollTop = Math.max(0, top - list.clientHeight / 2);
      }
    }
    rows();
  }

  // ---- the selection

  /** Marks these entries, and describes the first of them. */
  function select(of, fromDrawing) {
    selected = new Set(of);
    chosen = of.length ? of[fromDrawing && of.length > 1 ? of.length - 1 : 0] : -1;
    $("detail").textContent = of.map((index) => `${seconds(entries[index].at)}  ${entries[index].text}`).join("\n");
    schedule();
    if (chosen >= 0) reveal(chosen);
  }

  /** Chooses an entry of the list, and what belongs to it. */
  function choose(index) {
    const related = [arrows, bands].flatMap((all) => all.filter((some) => some.of.includes(index))).flatMap((some) => some.of);
    const others = [...new Set(related)].filter((other) => other !== index);
    selected = new Set([index, ...others]);
    chosen = index;
    const describe = (one) => `${seconds(entries[one].at)}  ${entries[one].text}`;
    $("detail").textContent = describe(index) + (others.length ? "\n\nbelongs to\n" + others.map(describe).join("\n") : "");
    const time = entries[index].at;
    if (time < view.from || time > view.to) center(time);
    schedule();
    reveal(index);
  }

  // ---- moving

  let isScheduled = false;
  function schedule() {
    if (isScheduled) return;
    isScheduled = true;
    requestAnimationFrame(() => { isScheduled = false; draw(); });
  }
  function show(from, to) {
    const span = Math.max(SHORTEST, Math.min(LONGEST, to - from));
    view.from = Math.max(-span * 0.02, Math.min(LONGEST - span, from));
    view.to = view.from + span;
    schedule();
  }
  const center = (time) => show(time - (view.to - view.from) / 2, time + (view.to - view.from) / 2);
  const zoom = (by, around) => show(around - (around - view.from) * by, around + (view.to - around) * by);
  const middle = () => (view.from + view.to) / 2;
  const pan = (part) => show(view.from + (view.to - view.from) * part, view.to + (view.to - view.from) * part);

  function toViolation() {
    if (!violation) return show(0, Math.min(LONGEST, 4e6));
    // From the beginning of the last hold that it names, or a second.
    const culprits = bars.filter((bar) => bar.isCulprit).map((bar) => violation.at - bar.from);
    const before = Math.min(4e6, Math.max(3e5, ...culprits.map((before) => before * 1.25), culprits.length ? 0 : 1e6));
    show(violation.at - before, violation.at + before * 0.28);
    select(entries.length ? [entries.length - 1] : [], false);
    // The lanes of the guards that it names are in view.
    const spots = places(), wanted = bars.filter((bar) => bar.isCulprit && spots.has(bar.lane));
    const bottom = Math.max(0, ...wanted.map((bar) => spots.get(bar.lane).top + spots.get(bar.lane).height));
    draw();
    if (bottom > $("scroll").clientHeight) $("scroll").scrollTop = bottom - $("scroll").clientHeight + 4;
  }

  $("to-violation").hidden = !violation;
  $("to-violation").addEventListener("click", toViolation);
  $("back").addEventListener("click", () => pan(-0.4));
  $("forth").addEventListener("click", () => pan(0.4));
  $("in").addEventListener("click", () => zoom(0.5, middle()));
  $("out").addEventListener("click", () => zoom(2, middle()));
  $("all").addEventListener("click", () => show(0, LONGEST));
  $("messages").addEventListener("change", schedule);
  $("silent").addEventListener("change", schedule);
  $("filter").addEventListener("input", filter);
  $("list").addEventListener("scroll", rows);
  $("list").addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15 }[event.key];
    if (!by || !shownEntries.length) return;
    event.preventDefault();
    const place = Math.max(0, shownEntries.indexOf(chosen)) + by;
    choose(shownEntries[Math.max(0, Math.min(shownEntries.length - 1, place))]);
  });

  const scroll = $("scroll");
  scroll.addEventListener("wheel", (event) => {
    event.preventDefault();
    const px = event.clientX - scroll.getBoundingClientRect().left;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / 900);
    else zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) / 400), at(Math.max(LABEL, px)));
  }, { passive: false });
  scroll.addEventListener("keydown", (event) => {
    const act = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), "+": () => zoom(0.6, middle()), "=": () => zoom(0.6, middle()),
      "-": () => zoom(1.7, middle()), Home: () => show(0, view.to - view.from), v: toViolation,
      End: () => show(LONGEST - (view.to - view.from), LONGEST),
    }[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // A drag moves the view; two fingers zoom.
  let moved = false;
  const fingers = new Map();
  scroll.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, [event.clientX, event.clientY]);
    moved = false;
  });
  window.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY], per = (view.to - view.from) / (width - LABEL);
    if (fingers.size === 1) {
      if (!moved && Math.hypot(now[0] - before[0], now[1] - before[1]) < 4) return;
      moved = true;
      scroll.classList.add("is-dragged");
      show(view.from - (now[0] - before[0]) * per, view.to - (now[0] - before[0]) * per);
      scroll.scrollTop -= now[1] - before[1];
    } else {
      moved = true;
      const other = [...fingers].find(([id]) => id !== event.pointerId)[1];
      const [was, is] = [Math.abs(before[0] - other[0]), Math.abs(now[0] - other[0])];
      const left = scroll.getBoundingClientRect().left;
      if (was > 8 && is > 8) zoom(was / is, at((now[0] + other[0]) / 2 - left));
    }
    fingers.set(event.pointerId, now);
  });
  for (const over of ["pointerup", "pointercancel"]) {
    window.addEventListener(over, (event) => {
      fingers.delete(event.pointerId);
      scroll.classList.remove("is-dragged");
    });
  }
  const canvas = $("overview");
  const follow = (event) => center(((event.clientX - canvas.getBoundingClientRect().left) / canvas.clientWidth) * LONGEST);
  canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId); follow(event); });
  canvas.addEventListener("pointermove", (event) => { if (canvas.hasPointerCapture(event.pointerId)) follow(event); });

  $("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
    root.dataset.theme = isDark ? "light" : "dark";
    schedule();
  });
  // `#dark` and `#light` set the colours, `#e7` chooses an entry.
  if (location.hash === "#dark" || location.hash === "#light") document.documentElement.dataset.theme = location.hash.slice(1);
  window.addEventListener("resize", schedule);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);

  function legend() {
    const sample = (text, paint) => {
      const span = document.createElement("span");
      const svg = el("svg", { width: 26, height: 12 });
      paint(svg);
      span.append(svg, text);
      $("legend").appendChild(span);
    };
    data.locks.forEach((name, lock) => sample(name, (svg) =>
      el("rect", { class: `bar guard l${lock % 4}`, x: 1, y: 1, width: 24, height: 10 }, svg)));
    sample("hold at a server", (svg) => el("rect", { class: "bar hold l0", x: 1, y: 1, width: 24, height: 10 }, svg));
    sample("valid at its client", (svg) => el("rect", { class: "bar guard l0", x: 1, y: 1, width: 24, height: 10 }, svg));
    sample("late or duplicate", (svg) => el("line", { class: "arrow is-stale", x1: 1, x2: 25, y1: 6, y2: 6 }, svg));
    sample("notification", (svg) => el("line", { class: "arrow notification", x1: 1, x2: 25, y1: 6, y2: 6 }, svg));
    sample("lost", (svg) => cross(svg, 13, 6, ""));
    sample("connection down", (svg) => el("line", { class: "band is-link", x1: 1, x2: 25, y1: 6, y2: 6 }, svg));
    sample("stopped or down", (svg) => el("rect", { class: "band", x: 1, y: 1, width: 24, height: 10 }, svg));
  }

  legend();
  draw();
  toViolation();
  const wantedEntry = location.hash.match(/^#e(\d+)$/);
  if (wantedEntry && Number(wantedEntry[1]) < entries.length) choose(Number(wantedEntry[1]));
})();
