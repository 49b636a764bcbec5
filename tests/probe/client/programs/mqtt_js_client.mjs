// mqtt.js as a subject: subscribes at QoS 2, publishes at QoS 0, 1 and 2, prints, reconnects.
//
//     node mqtt_js_client.mjs HOST PORT LEVEL CLIENT_ID TOPIC KEEP_ALIVE
//
// The package is found through NODE_PATH or beside the file that MQTT_JS names.
import { createRequire } from 'node:module'

const mqtt = createRequire(process.env.MQTT_JS || import.meta.url)('mqtt')
const [host, port, level, clientId, topic, keepalive] = process.argv.slice(2)
const isFive = level === '5'
const client = mqtt.connect({
  host, port: Number(port), protocolVersion: Number(level), clientId,
  keepalive: Number(keepalive), clean: isFive, reconnectPeriod: 300,
  ...(isFive ? { properties: { sessionExpiryInterval: 300 } } : {})
})
let isFirst = true
client.on('connect', () => {
  if (!isFirst) return
  isFirst = false
  client.subscribe(topic, { qos: 2 })
  for (const qos of [0, 1, 2, 1, 2]) client.publish(topic, `at QoS ${qos}`, { qos })
})
client.on('message', (name, payload) => console.log(payload.toString()))
client.on('error', (problem) => console.error(String(problem)))
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => client.end(false, () => process.exit(0)))
