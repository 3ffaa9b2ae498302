"use strict";
(() => {
  const drawn = JSON.parse(document.getElementById("drawn").textContent);
  const hidden = drawn.map(() => new Set());
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const seriesColor = (k) => color(`series-${k % 10}`);
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "pentagon"];
  const FEW = 30; // points of a line that are few enough to be marked one by one

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
      if (series.style === "bars") return { ...shown, type: "bar", marker: { color: seriesColor(series.color) } };
      const few = series.y.length <= FEW;
      return {
        ...shown, type: "scatter",
        mode: series.style === "points" ? "markers" : few && series.style === "line" ? "lines+markers" : "lines",
        line: { color: seriesColor(series.color), width: 2, dash: series.style === "dashed" ? "dash" : "solid" },
        marker: { color: seriesColor(series.color), size: 7, symbol: SYMBOLS[series.color % SYMBOLS.length] },
      };
    });
  }

  function layout(figure) {
    const heat = figure.kind === "heat map";
    const x = axis(figure.x_label, heat ? "linear" : figure.x_type);
    const y = axis(figure.y_label, heat ? "linear" : figure.y_type);
    if (heat) {
      y.autorange = "reversed";
      if (figure.values.length <= 12) y.dtick = 1;
      if (figure.values[0].length <= 12) x.dtick = 1;
    }
    for (const [which, letter] of [[x, "x"], [y, "y"]]) {
      if (which.type !== "log") continue;
      const logs = figure.series.flatMap((s) => s[letter]).filter((v) => v > 0).map(Math.log10);
      const span = logs.reduce((a, b) => Math.max(a, b), -Infinity) - logs.reduce((a, b) => Math.min(a, b), Infinity);
      if (span > 2) which.dtick = 1; // powers of ten alone
      else which.tickformat = "~g"; // 0.02, not a lonely 2
      if (span > 0.7 && span <= 2) which.dtick = "D2";
    }
    return {
      xaxis: x, yaxis: y, showlegend: false, hovermode: "closest", barmode: "group",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: color("ink"), family: "system-ui, sans-serif", size: 13 },
      margin: { l: 16, r: 16, t: 12, b: 16 },
      // a finger that moves over a figure scrolls the page
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
    box.checked = true; // browsers remember boxes over a reload
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  // for paper, the colours of the print style and the width of the sheet
  matchMedia("print").addEventListener("change", () => {
    draw();
    drawn.forEach((_, which) => Plotly.Plots.resize(`plot-${which}`));
  });
  draw();
})();
