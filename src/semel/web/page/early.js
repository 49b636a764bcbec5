// Runs before the first paint: a stored theme must not flash in the other one.
try {
  const theme = localStorage.getItem("semel-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's colors are right.
}
