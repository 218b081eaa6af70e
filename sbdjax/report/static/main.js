// One section after the other; one that fails says so and leaves the others alone.

const total = DATA.files.reduce((n, f) => n + f.records.length, 0);
document.getElementById("summary").textContent = `${total.toLocaleString("en")} records of ${DATA.files.length} files, ${DATA.points.set.length.toLocaleString("en")} points, ${DATA.curves.length.toLocaleString("en")} curves, ${DATA.texts.length.toLocaleString("en")} texts.`;

for (const [id, section] of [["records", sectionRecords], ["speed", sectionSpeed], ["prompts", sectionPrompts], ["texts", sectionTexts], ["curves", sectionCurves], ["settings", sectionSettings]]) {
  try {
    section();
  } catch (error) {
    put(bodyOf(id), el("p", { className: "wrong" }, `This section could not be made: ${error.message}`));
  }
}
document.documentElement.setAttribute("data-ready", "yes");
