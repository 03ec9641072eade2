// Says that the page cannot be started where its modules do not arrive, do not fit together or are not understood by
// the browser. A script of its own, in the JavaScript of old browsers, and before the modules: an error in them leaves
// nothing to say it.

addEventListener("error", function (event) {
  var isScript = event.target === window || event.target.tagName === "SCRIPT";
  var waiting = document.getElementById("waiting"); // gone once there is a picture
  if (!isScript || !waiting || !/^Loading/.test(waiting.textContent)) return;
  waiting.textContent = "The page could not be started. Reload it to try again; it needs Chrome or Edge 111, Firefox 114, Safari 16.4, or a later version.";
}, true);
