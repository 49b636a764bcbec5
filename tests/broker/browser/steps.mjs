// What mqtt.js is told to do, in Node.js and in a browser. Every step results in a value for JSON.
// In it a payload is a string with one character for each byte.

const encode = (text) => Uint8Array.from(text, (character) => character.charCodeAt(0));
const decode = (payload) => Array.from(payload, (byte) => String.fromCharCode(byte)).join("");

// Publish every payload at every QoS, and return all that comes back.
async function exchange(mqtt, { url, options, topic, payloads }) {
  const client = await mqtt.connectAsync(url, { reconnectPeriod: 0, ...options }, false);
  const closed = new Promise((_, reject) => {
    client.once("close", () => reject(new Error("the connection was closed too early")));
  });
  const received = [];
  const last = new Promise((resolve) => {
    client.on("message", (name, payload, packet) => {
      received.push([name, decode(payload), packet.qos]);
      if (name === `${topic}/last`) resolve();
    });
  });
  const act = async () => {
    const [granted] = await client.subscribeAsync(`${topic}/#`, { qos: 2 });
    for (const qos of [0, 1, 2]) {
      for (const payload of payloads) {
        await client.publishAsync(`${topic}/${qos}`, encode(payload), { qos });
      }
    }
    await client.publishAsync(`${topic}/last`, "", { qos: 2 });
    await last;
    // One more answer of the broker: a duplicate that was sent has arrived before it.
    await client.unsubscribeAsync(`${topic}/#`);
    return { granted: granted.qos, received };
  };
  const result = await Promise.race([act(), closed]);
  await client.endAsync();
  return result;
}

// Open a WebSocket without mqtt.js: the subprotocol that the broker selects.
function open({ url, subprotocols }) {
  return new Promise((resolve) => {
    const socket = new WebSocket(url, subprotocols);
    socket.onopen = () => {
      resolve({ subprotocol: socket.protocol });
      socket.close();
    };
    socket.onclose = ({ code }) => resolve({ error: "the WebSocket was closed", code });
  });
}

export async function perform(mqtt, step) {
  try {
    return await ("subprotocols" in step ? open(step) : exchange(mqtt, step));
  } catch (problem) {
    return { error: String(problem.message ?? problem.type), code: problem.code ?? null };
  }
}
