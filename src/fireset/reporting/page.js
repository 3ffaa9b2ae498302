"use strict";
(() => {
  const drawn = JSON.parse(document.getElementById("drawn").textContent);
  const hidden = drawn.map(() => new Set());
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const seriesColor = (k) => color(`series-${k % 10}`);
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"];
  const MAX_MARKED = 30; // points of a line that get markers
  const MAX_VALUE_TICKS = 6; // values of a logarithmic axis that get a tick each
  const MAX_LARGE_POINTS = 150; // more points are drawn smaller and transparent
  const isCategorical = (figure) => figure.x_type === "category"; // drawn as horizontal bars

  const axis = (label, type) => ({
    title: { text: label, standoff: 8 }, type, automargin: true,
    gridcolor: color("line"), linecolor: color("line"), zerolinecolor: color("line"),
    exponentformat: "power",
  });

  function traces(figure, which) {
    if (figure.kind === "heat map") {
      return [{
        type: "heatmap", z: figure.values, colorscale: [[0, color("cold")], [1, color("hot")]], showscale: false,
        hovertemplate: `${figure.x_label} %{x}, ${figure.y_label} %{y}: %{z}<extra></extra>`,
      }];
    }
    return figure.series.map((series, k) => {
      const shown = { x: series.x, y: series.y, name: series.name, visible: !hidden[which].has(k) };
      if (series.style === "bars") {
        const bars = { ...shown, type: "bar", marker: { color: seriesColor(series.color) } };
        if (!isCategorical(figure)) return bars;
        return {
          ...bars, orientation: "h", x: series.y, y: series.x, customdata: series.x.map((k) => figure.full_names[k]),
          texttemplate: "%{x:.3~g}", textposition: "auto", textangle: 0, cliponaxis: false,
          insidetextfont: { color: color("paper") },
          hovertemplate: "%{customdata}: %{x:.4~g}<extra></extra>",
        };
      }
      const few = series.y.length <= MAX_MARKED;
      const before = figure.series.slice(0, k).filter((other) => other.style !== "dashed").length;
      return {
        ...shown, type: "scatter",
        mode: series.style === "points" ? "markers" : few && series.style === "line" ? "lines+markers" : "lines",
        line: { color: seriesColor(series.color), width: 2, dash: series.style === "dashed" ? "dash" : "solid" },
        error_y: {
          visible: series.spans.length > 0, type: "data", symmetric: false, thickness: 1.2, width: 4,
          array: series.spans.map((span, i) => span[1] - series.y[i]),
          arrayminus: series.spans.map((span, i) => series.y[i] - span[0]),
        },
        marker: {
          color: seriesColor(series.color), symbol: SYMBOLS[before % SYMBOLS.length],
          ...(series.y.length > MAX_LARGE_POINTS ? { size: 5, opacity: 0.6 } : { size: 7 }),
        },
      };
    });
  }

  function layout(figure) {
    const heat = figure.kind === "heat map";
    const words = !heat && isCategorical(figure);
    const x = words ? axis(figure.y_label, figure.y_type) : axis(figure.x_label, heat ? "linear" : figure.x_type);
    const y = words ? axis(figure.x_label, "linear") : axis(figure.y_label, heat ? "linear" : figure.y_type);
    if (words) {
      Object.assign(y, {
        tickvals: figure.names.map((_, k) => k), ticktext: figure.names, showgrid: false, zeroline: false,
        range: [figure.names.length - 0.5, -0.5], fixedrange: true, title: undefined,
      });
      if (matchMedia("(max-width: 40rem)").matches) y.tickfont = { size: 11 };
    }
    if (heat) {
      y.autorange = "reversed";
      if (figure.values.length <= 12) y.dtick = 1;
      if (figure.values[0].length <= 12) x.dtick = 1;
    }
    for (const [which, letter] of [[x, words ? "y" : "x"], [y, words ? "x" : "y"]]) {
      if (which.type !== "log") continue;
      const logs = figure.series.flatMap((s) => s[letter]).filter((v) => v > 0).map(Math.log10);
      const span = logs.reduce((a, b) => Math.max(a, b), -Infinity) - logs.reduce((a, b) => Math.min(a, b), Infinity);
      if (span > 2) which.dtick = 1; // only powers of ten
      else which.tickformat = "~g"; // 0.02 instead of a bare 2
      if (span > 0.7 && span <= 2) which.dtick = "D2";
      const values = [...new Set(figure.series.flatMap((s) => s[letter]))];
      if (letter === "x" && values.length <= MAX_VALUE_TICKS) {
        Object.assign(which, { tickvals: values, ticktext: values.map((v) => v.toLocaleString("en")) });
      }
    }
    return {
      xaxis: x, yaxis: y, showlegend: false, hovermode: "closest", barmode: "group", bargap: words ? 0.25 : 0.05,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("ink"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 16, r: 16, t: 12, b: 16 },
      // on touch screens, dragging scrolls the page
      dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
    };
  }

  const config = { displayModeBar: false, responsive: true, displaylogo: false, showLink: false };

  function draw() {
    drawn.forEach((figure, which) => {
      Plotly.react(`plot-${which}`, traces(figure, which), layout(figure), config);
    });
    document.querySelectorAll(".swatch").forEach((swatch) => {
      swatch.style.color = seriesColor(Number(swatch.dataset.color));
    });
  }

  document.querySelectorAll(".legend input").forEach((box) => {
    box.addEventListener("change", () => {
      const which = Number(box.dataset.figure), k = Number(box.dataset.series);
      if (box.checked) hidden[which].delete(k); else hidden[which].add(k);
      Plotly.react(`plot-${which}`, traces(drawn[which], which), layout(drawn[which]), config);
    });
    box.checked = true; // browsers keep the state over a reload
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // in print, use the colours of the print style and the width of the page
  matchMedia("print").addEventListener("change", () => {
    draw();
    drawn.forEach((_, which) => Plotly.Plots.resize(`plot-${which}`));
  });
  draw();
})();
