"use strict";
// Live panels: the server sends HTML fragments (escaped there) and chart columns; EventSource comes back by itself.
(() => {
  const root = document.documentElement;
  const live = document.getElementById("live");
  const uptime = document.getElementById("uptime");
  const charts = new Map();
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");

  function store(key, value) {
    try {
      if (value === undefined) return localStorage.getItem(key);
      localStorage.setItem(key, value);
    } catch (refused) { return null; }   // storage may be switched off
  }

  function applyTheme() {
    const chosen = store("recmesh-theme");
    const dark = chosen ? chosen === "dark" : prefersDark.matches;
    root.dataset.theme = dark ? "dark" : "light";
    for (const index of charts.keys()) drawChart(index, charts.get(index).columns);
  }

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function short(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    for (const [limit, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (size >= limit) return Number((value / (unit === "k" ? 1e3 : limit)).toPrecision(3)) + " " + unit;
    }
    return String(Number(value.toPrecision(size >= 1000 ? 4 : 3)));
  }

  function clock(at, step) {
    const date = new Date(at * 1000);
    if (step >= 86400) return date.toLocaleDateString("sv");            // 2026-01-31
    return date.toLocaleTimeString("sv").slice(0, step < 60 ? 8 : 5);   // 14:05 or 14:05:09
  }

  // Without a cursor the legend shows the newest value.
  function shown(plot, value, series, index) {
    if (index !== null && index !== undefined) return short(value);
    const column = plot.data[series];
    for (let n = column.length - 1; n >= 0; n--) if (column[n] !== null && column[n] !== undefined) return short(column[n]);
    return "–";
  }

  function options(names, rows, width, fromZero) {
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 },
                   ticks: { stroke: colour("--line"), width: 1, size: 5 }, font: "11px system-ui, sans-serif" };
    return {
      width, height: 200, cursor: { y: false, points: { size: 6 } },
      axes: [
        { ...axis, space: 70, size: 30, values: (_, ticks, __, ___, step) => ticks.map((at) => clock(at, step)) },
        { ...axis, size: 54, values: (_, ticks) => ticks.map(short) },
      ],
      scales: { x: { range: (_, low, high) => low === null ? [0, 1] : high - low < 10 ? [low - 30, high + 30] : [low, high] }, y: { range: (_, low, high) => low === null ? [0, 1] : uPlot.rangeNum(fromZero ? Math.min(low, 0) : low, fromZero ? high || 1 : high, 0.1, fromZero) } },
      series: [{}, ...names.map((name, n) => ({ label: name, stroke: colour("--s" + (n % 6)), width: 1.7,
        points: { show: rows < 3 }, value: shown }))],
    };
  }

  function drawChart(index, columns) {
    const body = document.querySelector("#panel-" + index + " .body");
    const known = charts.get(index);
    const names = JSON.stringify(columns.names);
    const filled = columns.series.filter((pair) => pair[0].length);
    if (!filled.length) {
      if (known && known.plot) known.plot.destroy();
      const empty = document.createElement("p");
      empty.className = "quiet";
      empty.textContent = "nothing yet";
      body.replaceChildren(empty);
      charts.set(index, { plot: null, names: "", theme: "", columns });
      return;
    }
    // Null stays a gap; where a series merely has other times than its neighbour, its line goes on.
    const data = columns.series.length > 1 ? uPlot.join(columns.series, columns.series.map(() => [1, 1])) : columns.series[0];
    if (known && known.plot && known.names === names && known.theme === root.dataset.theme) {
      known.plot.setData(data);
      known.columns = columns;
      return;
    }
    if (known && known.plot) known.plot.destroy();
    body.replaceChildren();
    const plot = new uPlot(options(columns.names, data[0].length, body.clientWidth, columns.from_zero !== false), data, body);
    charts.set(index, { plot, names, theme: root.dataset.theme, columns });
  }

  function showHtml(index, html) {
    const body = document.querySelector("#panel-" + index + " .body");
    const lines = body.querySelector(".lines");
    const atEnd = !lines || lines.scrollTop + lines.clientHeight >= lines.scrollHeight - 4;
    const scrolled = lines ? lines.scrollTop : 0;
    body.innerHTML = html;
    const now = body.querySelector(".lines");
    if (now) now.scrollTop = atEnd ? now.scrollHeight : scrolled;
  }

  function say(tone, text) {
    live.className = "pill " + tone;
    live.textContent = text;
  }

  function tick() {
    const seconds = Math.max(0, Date.now() / 1000 - Number(uptime.dataset.started));
    const [d, h, m] = [Math.floor(seconds / 86400), Math.floor(seconds / 3600) % 24, Math.floor(seconds / 60) % 60];
    uptime.textContent = d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min` : `${Math.floor(seconds)} s`;
  }

  function connect() {
    const source = new EventSource("events" + location.search);   // it may say what to show
    source.addEventListener("hello", (event) => {
      const hello = JSON.parse(event.data);
      if (hello.shape !== root.dataset.shape) location.reload();   // the service came back with another page
      uptime.dataset.started = hello.started;
      say("ok", "live");
    });
    source.addEventListener("panels", (event) => {
      for (const [index, part] of Object.entries(JSON.parse(event.data))) {
        if (part.chart) drawChart(Number(index), part.chart); else showHtml(index, part.html);
      }
    });
    source.onerror = () => {
      say("warn", "reconnecting");
      // A refusal (503, or a proxy's page) ends an EventSource for good: begin a new one.
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
    };
  }

  document.getElementById("theme").addEventListener("click", () => {
    store("recmesh-theme", root.dataset.theme === "dark" ? "light" : "dark");
    applyTheme();
  });
  prefersDark.addEventListener("change", applyTheme);
  new ResizeObserver(() => {
    for (const [index, known] of charts) {
      const body = document.querySelector("#panel-" + index + " .body");
      if (known.plot) known.plot.setSize({ width: body.clientWidth, height: 200 });
    }
  }).observe(document.querySelector("main"));

  applyTheme();
  for (const body of document.querySelectorAll("[data-chart]")) {
    drawChart(Number(body.parentElement.id.slice(6)), JSON.parse(body.dataset.chart));
  }
  for (const lines of document.querySelectorAll(".lines")) lines.scrollTop = lines.scrollHeight;
  setInterval(tick, 1000);
  tick();
  connect();
})();
