// Controls of the theme that have a sign and no name get one, for those who hear a page.
document.addEventListener("DOMContentLoaded", () => {
  for (const toggle of document.querySelectorAll(".bd-sidenav summary")) {
    const section = toggle.closest("li").querySelector("a");
    toggle.setAttribute("aria-label", `Pages of ${section ? section.textContent.trim() : "this section"}`);
  }
  for (const button of document.querySelectorAll(".search-button-field")) {
    button.removeAttribute("aria-label"); // it has words, which are its name
  }
});
