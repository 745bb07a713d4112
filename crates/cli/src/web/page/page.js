"use strict";

const EVERY_MS = 5000;
/* The shortest that has room for all samples is drawn. */
const SPANS_MIN = [6, 15, 30, 60];
const WIDTH = 420, HEIGHT = 176, LEFT = 54, BOTTOM = 18, TOP = 8, LABEL = 13;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const $ = (id) => document.getElementById(id);

function bytes(n) {
  if (n === null || n === undefined) return "–";
  let at = 0;
  while (n >= 1024 && at < UNITS.length - 1) { n /= 1024; at++; }
  return `${n >= 100 || at === 0 ? Math.round(n) : n.toFixed(1)} ${UNITS[at]}`;
}

const rate = (n) => (n === null || n === undefined ? "–" : `${bytes(n)}/s`);

function span(s) {
  if (s === null || s === undefined) return "–";
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
  return `${Math.round(s / 86400)} d`;
}

/* What the server says is text, never markup. */
function make(name, properties, ...children) {
  const node = document.createElement(name);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

function draw(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function figures(status) {
  const drain = status.drain;
  const found = [
    ["Undrained", bytes(status.dirty_bytes)],
    ["Most that may be", bytes(status.dirty_cap_bytes)],
    ["Drain", rate(drain.rate_bytes_per_s)],
    ["On the PFS in", drain.eta_s === null ? "–" : span(drain.eta_s)],
    ["Has the turn", turns(status)],
    ["Files", status.files.toLocaleString("en")],
    ["Waited for space", span(status.space_wait_s_total)],
    ["Restarts from here", `${status.restart_hits_total} of ${status.restarts_total}`],
    ["Errors, conflicts", `${status.errors_total}, ${status.conflicts_total}`],
  ];
  $("figures").replaceChildren(...found.map(([what, value]) => make("div", {}, make("span", { textContent: what }), make("b", { textContent: value }))));
}

function turns(status) {
  if (status.names_hidden) return "not shown";
  const nodes = (status.nodes || []).length > 0;
  const found = (status.turns || []).map((turn) => `${turn.application}${nodes ? ` (server ${turn.server})` : ""}${turn.waiting_writes ? `, ${turn.waiting_writes} wait` : ""}`);
  return found.length ? found.join("; ") : "nobody";
}

/* Copies to the PFS and ordered movements, with the time that is left. */
function onItsWay(status) {
  const meter = (done, all, what) => make("meter", { max: all || 1, value: done, title: `${what}: how far` });
  const copies = (status.copies || []).map((copy) => [copy.path, "to the PFS", meter(copy.copied_bytes, copy.bytes, copy.path), bytes(copy.copied_bytes), bytes(copy.bytes), span(copy.eta_s)]);
  const movements = (status.movements || []).map((moves) => [`${moves.files_done} of ${moves.files_total}${moves.counting ? " or more" : ""} files`, moves.movement,
    meter(moves.bytes_done, moves.bytes_total, moves.movement), bytes(moves.bytes_done), bytes(moves.bytes_total), span(moves.eta_s)]);
  $("now-part").hidden = copies.length + movements.length === 0;
  table("now", ["What", "How", "", "Done", "Of", "Time left"], [...movements, ...copies], "");
}

/* Draws the lines. Those that lie close together have one label, or nobody could read them. */
function labels(limits, y, svg) {
  const found = [];
  for (const limit of limits.sort((one, other) => other.value - one.value)) {
    const at = y(limit.value);
    svg.append(draw("line", { class: "limit", x1: LEFT, x2: WIDTH, y1: at, y2: at }));
    const above = found[found.length - 1];
    if (above && at - above.at < LABEL) above.names.unshift(limit.name);
    else found.push({ at, names: [limit.name] });
  }
  return found;
}

/* A row of lines over the last hour. `lines`: name, values; `limits`: name, value. */
function chart(place, label, at, lines, limits, format, top) {
  const drawn = lines.filter((line) => line.values.some((value) => value !== null));
  const all = drawn.flatMap((line) => line.values.filter((value) => value !== null));
  const shown = limits.filter((limit) => limit.value !== null && limit.value !== undefined);
  const highest = top || Math.max(1, ...all, ...shown.map((limit) => limit.value)) * 1.06;
  const end = at.length ? at[at.length - 1] : 0;
  const minutesShown = SPANS_MIN.find((minutes) => at.length && end - at[0] <= minutes * 60) || SPANS_MIN[SPANS_MIN.length - 1];
  const x = (t) => LEFT + (1 - (end - t) / (minutesShown * 60)) * (WIDTH - LEFT);
  const y = (v) => TOP + (1 - v / highest) * (HEIGHT - TOP - BOTTOM);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    const value = (top || highest) * part;
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const minutes of [1, 2 / 3, 1 / 3, 0].map((part) => part * minutesShown)) {
    const anchor = minutes === 0 ? "end" : minutes === minutesShown ? "start" : "middle";
    svg.append(draw("text", { x: x(end - minutes * 60), y: HEIGHT - 2, "text-anchor": anchor }, minutes ? `−${minutes} min` : "now"));
  }
  for (const { at, names } of labels(shown.filter((limit) => limit.value <= highest), y, svg)) {
    svg.append(draw("text", { class: "limit-name", x: WIDTH, y: at - 3, "text-anchor": "end" }, names.join(", ")));
  }
  drawn.forEach((line, nth) => {
    const points = line.values.map((value, i) => [at[i], value]).filter(([, value]) => value !== null);
    const path = points.map(([t, v], i) => `${i ? "L" : "M"}${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("");
    const [first, last] = [points[0][0], points[points.length - 1][0]];
    svg.append(draw("path", { class: `area s${nth % 4}`, d: `${path}L${x(last).toFixed(1)} ${y(0)}L${x(first).toFixed(1)} ${y(0)}Z` }));
    svg.append(draw("path", { class: `line s${nth % 4}`, d: path }));
  });
  const key = make("ul", { className: "key" }, ...drawn.map((line, nth) => make("li", {},
    draw("svg", { viewBox: "0 0 16 8", "aria-hidden": "true" }, draw("rect", { class: `s${nth % 4}`, width: 16, height: 8, rx: 2 })),
    `${line.name}: ${format(line.values[line.values.length - 1])}`)));
  $(place).replaceChildren(svg, key);
}

function charts(status, history) {
  const percent = (n) => (n === null ? "–" : `${Math.round(n)} %`);
  const capacity = (name) => (status.tiers.find((tier) => tier.name === name) || {}).capacity_bytes;
  chart("fill", "How full each tier was in the last hour", history.at_s, history.tiers.map((name, nth) => ({
    name, values: history.used_bytes[nth].map((used) => (capacity(name) ? (100 * used) / capacity(name) : null)),
  })), [], percent, 100);
  chart("plan", "Bytes written in the period and bytes undrained in the last hour", history.at_s, [
    { name: "written in the period", values: history.period_written_bytes },
    { name: "undrained", values: history.undrained_bytes },
  ], [{ name: "demotion starts", value: status.plan.start_dwsf_bytes }, { name: "at full speed", value: status.plan.full_dwsf_bytes }], bytes);
  const bandwidths = status.plan.bandwidths || {};
  chart("rates", "Checkpoint and drain rates in the last hour", history.at_s, [
    { name: "checkpoints", values: history.written_bytes_per_s },
    { name: "drain", values: history.drained_bytes_per_s },
  ], [{ name: "Bwmin", value: bandwidths.bw_min_bytes_per_s }, { name: "Brmax", value: bandwidths.br_max_bytes_per_s }], rate);
}

function table(id, heads, rows, none) {
  const cell = (value) => (value instanceof Node ? make("td", {}, value) : make("td", value && value.bad ? { className: "bad", textContent: value.bad } : { textContent: value }));
  const body = rows.length ? rows.map((row) => make("tr", {}, ...row.map(cell))) : [make("tr", {}, make("td", { colSpan: heads.length, textContent: none }))];
  $(id).replaceChildren(make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col", textContent: head })))), make("tbody", {}, ...body));
}

function tables(status) {
  table("tiers", ["Tier", "", "Used", "Capacity", "Undrained", "Reserved", ""], status.tiers.map((tier) => [
    tier.name, make("meter", { max: tier.capacity_bytes || 1, value: tier.used_bytes, title: `${tier.name}: how full` }), bytes(tier.used_bytes),
    bytes(tier.capacity_bytes), bytes(tier.dirty_bytes), bytes(tier.reserved_bytes), tier.out_of_reach ? { bad: "out of reach" } : "",
  ]), "no tier here");
  const nodes = status.nodes || [];
  $("nodes-part").hidden = nodes.length === 0;
  table("nodes", ["Server", "Rack", "", "Used", "Capacity", "Undrained", "Only there", "Copies under way"], nodes.map((node) => [
    String(node.id ?? node.server), node.rack || "–", node.answers === false ? { bad: `missing for ${span(node.missing_s)}` } : "answers", bytes(node.used_bytes),
    bytes(node.capacity_bytes), bytes(node.dirty_bytes), bytes((node.only_here || {}).bytes), String(node.copies_under_way ?? 0),
  ]), "");
  table("applications", ["Application", "Newest version", "In the buffer", "Undrained", "Written in the period", "Expected", "MTBF"], (status.applications || []).map((app) => [
    app.name, app.version === null ? "–" : String(app.version), bytes(app.resident_bytes), bytes(app.dirty_bytes), bytes(app.dwsf_bytes), bytes(app.dwpp_bytes), span(app.mtbf_s),
  ]), status.names_hidden ? "names are not shown here: forebay status has them" : "none has anything here");
  const limits = status.names_hidden ? [] : status.limits || [];
  $("limits-part").hidden = limits.length === 0;
  table("limits", ["Of", "Held", "At most", "Undrained", "At most", "Beyond", "Writes at", "Held back"], limits.map((limit) => [
    `${limit.kind} ${limit.name}`, bytes(limit.used_bytes), bytes(limit.capacity_bytes), bytes(limit.dirty_bytes), bytes(limit.undrained_bytes), limit.beyond,
    rate(limit.rate_bytes_per_s), limit.rate_bytes_per_s === null ? "–" : span(limit.paused_s),
  ]), "");
}

function problems(status) {
  const named = (entry) => (entry.path ? `${entry.path}: ` : "");
  const list = [...(status.errors || []).map((error) => `${named(error)}${error.error || error.reason || ""}`), ...(status.conflicts || []).map((c) => `conflict: ${named(c)}${c.reason || ""}`)];
  const hidden = status.names_hidden ? "Names of files are not shown here: `forebay status` has them." : "";
  const lines = list.length ? list : [status.errors_total + status.conflicts_total ? "None now." : "None."];
  $("problems").replaceChildren(...[...lines, hidden].filter(Boolean).map((line) => make("li", { textContent: line })));
}

function show(status, history, health) {
  if (status.standby) return standsBy(status);
  document.body.classList.remove("standby");
  $("place").textContent = status.mount || status.state || "";
  document.title = `Forebay ${status.mount || status.pfs || ""}`;
  $("facts").textContent = `in front of ${status.pfs || "–"} · ${status.version} · up for ${span(status.uptime_s)} · fsync: ${status.durability || "–"}${unkept(status)}`;
  wellness(health.ok, health.text);
  if (!status.drain) return tables({ ...status, applications: [] });
  figures(status);
  charts(status, history);
  $("why").textContent = status.plan.why ? `Plan: ${status.plan.why}` : "";
  onItsWay(status);
  tables(status);
  problems(status);
}

/* A server that was to be started again if it dies, and is not any more. */
const unkept = (status) => (status.keeper && !status.keeper.runs ? " · nothing starts it again if it dies" : "");

function standsBy(status) {
  $("facts").textContent = `${status.version} · stands by; ${status.standby.leader} leads${unkept(status)}`;
  $("place").textContent = status.state || "";
  document.title = `Forebay: ${status.standby.cluster}, stands by`;
  wellness(true, "stands by");
  $("why").textContent = `Server ${status.standby.id} of ${status.standby.cluster} takes over when ${status.standby.leader} has gone. What is in the burst buffer is on that one's page.`;
  document.body.classList.add("standby");
}

function wellness(ok, text) {
  $("health").className = `pill ${ok ? "good" : "bad"}`;
  $("health").textContent = text;
}

async function look() {
  try {
    const [status, history, health] = await Promise.all([fetch("status.json"), fetch("history.json"), fetch("healthz")]);
    if (!status.ok) throw new Error(await status.text());
    show(await status.json(), await history.json(), { ok: health.ok, text: (await health.text()).trim() });
    document.body.dataset.shown = String(Date.now());
  } catch (error) {
    wellness(false, `no answer: ${error.message.trim()}`);
  }
  setTimeout(look, EVERY_MS);
}

look();
