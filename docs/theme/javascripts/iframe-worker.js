// Lets the search work without a server. A browser starts no workers from file:, so what would be
// one runs in a hidden frame; the search looks for the name IFrameWorker to find its files.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.load(url).then(() => {
        this.isLoaded = true
        this.waiting.forEach(data => this.postMessage(data))
      })
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      return new Promise((resolve, reject) => {
        script.onload = resolve
        script.onerror = reject
        this.frame.contentDocument.body.append(script)
      })
    }

    postMessage(data) {
      if (this.isLoaded) {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      } else {
        this.waiting.push(data)
      }
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker
}
