"use strict";
const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"); // plotly reads some HTML
const chosen = {}; // by the title of the section

async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), letter => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
}

function plot(box, traces, titles, axes, more) {
  const ink = getComputedStyle(document.body).color, line = "rgba(128, 128, 128, .35)";
  const layout = { paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink }, showlegend: false,
    hovermode: "closest", hoverlabel: { namelength: -1 }, margin: { l: 55, r: 12, t: 28, b: 45 }, ...more };
  ["xaxis", "yaxis"].forEach((name, i) => {
    layout[name] = { title: { text: plain(titles[i]) }, gridcolor: line, zerolinecolor: line, automargin: true, ...axes[i] };
  });
  Plotly.react(box, traces, layout, { responsive: true, displaylogo: false });
}

function limits(values, log) { // of an axis that lines of diverged runs leave; without other lines, all that plotly likes
  if (!values.length) return {};
  const ends = [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))].map(end => (log ? Math.log10(end) : end));
  const room = 0.05 * (ends[1] - ends[0] || Math.abs(ends[1]) || 1);
  return { range: [ends[0] - room, ends[1] + room] };
}

function fromMenus(section, { menus, ys }, choice) { // the y axis; each menu lists what exists for the values of those before it
  let keys = Object.keys(ys).map(key => key.split("|"));
  menus.forEach((menu, i) => {
    const names = [...new Set(keys.map(key => key[i]))];
    if (!names.includes(choice[menu])) [choice[menu]] = names;
    all(`[name="${menu}"]`, section)[0].replaceChildren(...names.map(name => new Option(name)));
    keys = keys.filter(key => key[i] === choice[menu]);
  });
  return keys[0].join("|");
}

function draw(section, chart, choice) {
  if (chart.menus) choice.y = fromMenus(section, chart, choice);
  if (!(choice.y in chart.ys)) choice.y = Object.keys(chart.ys)[0];
  choice.x ??= Object.keys(chart.xs)[0];
  const { x, y, hidden } = choice, bands = choice.bands ?? true;
  const logs = { "log x": choice["log x"] ?? chart.logx ?? false, "log y": choice[`log ${y}`] ?? chart.logs[y] };
  all("form [name]", section).forEach(input => {
    if (input.type === "checkbox") input.checked = { bands, ...logs }[input.name];
    else if (input.name !== "division") input.value = choice[input.name];
  });
  all("[data-y]", section).forEach(view => { view.hidden = view.dataset.y !== y; });
  const curves = chart.curves[y][x], traces = [], kept = []; // kept: the values that set the limits of the y axis
  const floor = Math.min(...curves.flatMap(curve => (curve ? curve[1].filter(mean => mean > 0) : [])));
  const buttons = chart.lines.map(({ name, label, colour, dash, symbol }, i) => {
    const ink = colour === "#000000" ? getComputedStyle(document.body).color : colour, off = hidden.has(name);
    const [at, mean, low, high] = curves[i] ?? [[], []], there = [...at.keys()].filter(k => low && low[k] !== null && high[k] !== null);
    if (bands && !off && there.length) traces.push({ // up along the upper end, back along the lower one
      x: [...there, ...there.toReversed()].map(k => at[k]), fill: "toself", fillcolor: ink, opacity: 0.18, line: { width: 0 }, hoverinfo: "skip",
      y: [...there.map(k => high[k]), ...there.toReversed().map(k => (logs["log y"] && low[k] <= 0 ? floor : low[k]))], mode: "lines" });
    if (!off && !chart.lines[i].lost) kept.push(...(bands && low ? [...low, ...high] : mean).filter(v => v !== null && (!logs["log y"] || v > 0)));
    if (!off) traces.push({ x: at, y: mean, name: plain(label), hoverinfo: "x+y+name", mode: symbol ? "lines+markers" : at.length > 1 ? "lines" : "markers",
      line: { color: ink, dash: dash.replace(/t?ed$/, ""), width: 2 }, marker: { color: ink, size: 8, symbol: symbol ?? "circle" } });
    const button = Object.assign(document.createElement("button"), { type: "button", disabled: !at.length, hidden: chart.menus && !at.length });
    const swatch = button.appendChild(document.createElement("i"));
    swatch.style.borderTop = `3px ${dash === "dashdot" ? "dashed" : dash} ${ink}`;
    button.append(label);
    button.ariaPressed = !off;
    button.onclick = () => { if (!hidden.delete(name)) hidden.add(name); draw(section, chart, choice); all(".legend button", section)[i].focus(); };
    return button;
  });
  all(".legend", section)[0].replaceChildren(...buttons);
  const target = chart.targets[y] ?? [], grey = { color: "grey", dash: "dot", width: 1.5 };
  const shapes = [target].flat().map(y0 => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0, y1: y0, line: grey }));
  plot(all(".chart", section)[0], traces, [chart.xs[x], chart.ys[y]], [
    { type: logs["log x"] ? "log" : "linear", exponentformat: "SI", hoverformat: ".6~g" },
    { type: logs["log y"] ? "log" : "linear", exponentformat: "power", hoverformat: ".5~g", nticks: 8,
      ...(chart.lines.some(({ name, lost }) => lost && !hidden.has(name)) ? limits(kept, logs["log y"]) : {}) },
  ], { shapes, uirevision: JSON.stringify([x, y, logs]) }); // zoomed as it was, except on other axes
}

function drawMap(section, maps) {
  const { clients, classes, counts } = maps[all("[name=division]", section)[0].value], box = all(".map", section)[0];
  box.style.height = `${Math.min(700, 150 + 18 * classes.length)}px`;
  const z = classes.map((_, c) => counts.map(row => row[c])), hovertemplate = "client %{x}, class %{y}: %{z}<extra></extra>";
  const heat = { type: "heatmap", x: clients.map(plain), y: classes.map(plain), z, colorscale: "Cividis", hovertemplate };
  plot(box, [heat], ["client", "class"], [{ type: "category" }, { type: "category" }]);
}

function sort(table, [column, order]) {
  all("th", table).forEach((head, i) => { head.ariaSort = i === column ? order : "none"; });
  const number = text => { // of a cell such as "(1.2 ± 0.1)e-05"
    const [, start, power] = text.replace("inf", "Infinity").match(/^\(?(-?[\d.]+(?:e[-+]?\d+)?|-?Infinity)(?:[^)]*\)(e[-+]\d+))?/) ?? [];
    return Number(start + (power ?? ""));
  };
  const missing = text => ["-", "", "nan"].includes(text), sign = order === "ascending" ? 1 : -1;
  const rows = all("tbody tr", table).map(row => [row, row.cells[column].textContent]);
  const numeric = rows.every(([, text]) => missing(text) || !Number.isNaN(number(text)));
  rows.sort(([, one], [, other]) => missing(one) - missing(other)
    || sign * (numeric ? number(one) - number(other) : one.localeCompare(other, undefined, { numeric: true })) || 0);
  all("tbody", table)[0].append(...rows.map(([row]) => row));
}

async function show() {
  const data = JSON.parse(await unpacked("data"));
  all("section").forEach((section, s) => {
    const { chart, maps } = data[s], choice = chosen[section.dataset.title] ??= { hidden: new Set(), sorts: {}, open: {} };
    section.onchange = ({ target: { name, type, checked, value } }) => {
      choice[name === "log y" ? `log ${choice.y}` : name] = type === "checkbox" ? checked : value;
      if (name === "division") drawMap(section, maps); else draw(section, chart, choice);
    };
    all("details", section).forEach(part => {
      const key = [part.closest("[data-y]")?.dataset.y, part.firstElementChild.textContent].join();
      part.open = choice.open[key] ?? part.open;
      part.ontoggle = () => { choice.open[key] = part.open; };
      all("th button", part).forEach((button, column) => { button.onclick = () => {
        const again = button.parentElement.ariaSort === "ascending";
        sort(part, choice.sorts[key] = [column, again ? "descending" : "ascending"]);
      }; });
      if (choice.sorts[key]) sort(part, choice.sorts[key]);
      all(".wide", part).forEach(box => new ResizeObserver(() => {
        box.classList.toggle("scrolls", box.scrollWidth > box.clientWidth + 1);
      }).observe(box));
    });
    if (chart) draw(section, chart, choice);
    if (choice.division in maps) all("[name=division]", section)[0].value = choice.division;
    if (Object.keys(maps).length) drawMap(section, maps);
  });
}

unpacked("plotly").then(code => {
  document.head.append(Object.assign(document.createElement("script"), { textContent: code }));
  matchMedia("(prefers-color-scheme: dark)").onchange = () => show();
  return show();
});
