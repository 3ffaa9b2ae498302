// Search in pages that are read from the file system. Browsers start no worker from file://, so the search worker of the
// theme runs in a hidden frame instead. The plugin `offline` would fetch a script for this from elsewhere; these pages fetch
// nothing. Served by http, this file does nothing.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const address = new URL(url, document.baseURI);
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      const page = this.inside.document;
      page.open(); // Firefox would otherwise replace the empty page a moment later
      page.write("<!doctype html><title>search</title>");
      page.close();
      const load = (source) =>
        new Promise((done, failed) => {
          const script = page.createElement("script");
          script.src = new URL(source, address);
          script.onload = done;
          script.onerror = failed;
          page.head.append(script);
        });
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...sources) => sources.reduce((before, each) => before.then(() => load(each)), Promise.resolve());
      this.loaded = load(address);
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
  window.Worker = window.IFrameWorker;
}
