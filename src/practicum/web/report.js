"use strict";
// Read values off a chart with the pointer or the arrow keys.
for (const svg of document.querySelectorAll("svg[data-points]")) {
  const points = JSON.parse(svg.dataset.points);
  const mark = svg.querySelector(".mark");
  const value = svg.closest("figure").querySelector(".value");
  const rest = value.textContent;
  let at = points.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const [x, y, step, text] = points[at];
    mark.setAttribute("cx", x);
    mark.setAttribute("cy", y);
    mark.style.visibility = "visible";
    value.textContent = `step ${step}: ${text}`;
  };
  const hide = () => {
    mark.style.visibility = "hidden";
    value.textContent = rest;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    let nearest = 0;
    points.forEach((p, i) => {
      if (Math.abs(p[0] - x) < Math.abs(points[nearest][0] - x)) nearest = i;
    });
    show(nearest);
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("focus", () => show(at));
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: points.length - 1 };
    if (event.key in moves) {
      show(moves[event.key]);
      event.preventDefault();
    }
  });
}
// Which transcripts are listed, and a link straight to one opens it.
const verdict = document.getElementById("verdict");
if (verdict) {
  verdict.addEventListener("change", () => {
    for (const item of document.querySelectorAll("details.transcript")) {
      item.hidden = verdict.value !== "all" && item.dataset.verdict !== verdict.value;
    }
  });
}
const open = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) target.open = true;
};
addEventListener("hashchange", open);
open();
