// mqtt-packet (npm) as a subject: its parser and its generator, which mqtt.js and aedes use.
//
//     npm install mqtt-packet
//     semel probe codec -- node mqtt_packet.mjs
//
// The package is looked for beside this file and in the current directory.

import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { join } from 'node:path'

function load () {
  for (const place of [import.meta.url, join(process.cwd(), 'package.json')]) {
    try {
      const require = createRequire(place)
      return [require('mqtt-packet'), require('mqtt-packet/package.json').version]
    } catch (problem) {
      if (problem.code !== 'MODULE_NOT_FOUND') throw problem
    }
  }
  console.error('mqtt-packet is not installed: npm install mqtt-packet')
  process.exit(2)
}

const [mqtt, packageVersion] = load()
const LEVELS = { '3.1.1': 4, '5.0': 5 }
const TYPES = ['Connect', 'ConnAck', 'Publish', 'PubAck', 'PubRec', 'PubRel', 'PubComp',
  'Subscribe', 'SubAck', 'Unsubscribe', 'UnsubAck', 'PingReq', 'PingResp', 'Disconnect', 'Auth']
const NAMES = Object.fromEntries(TYPES.map((type) => [type.toLowerCase(), type]))
// Its words for properties, where they are not the same in camel case.
const WORDS = { maximum_qos: 'maximumQoS', subscription_identifiers: 'subscriptionIdentifier' }
const BOOLEANS = ['payload_format_indicator', 'request_problem_information',
  'request_response_information', 'retain_available', 'wildcard_subscription_available',
  'subscription_identifiers_available', 'shared_subscription_available']

class Cannot extends Error {}

const binary = (text) => Buffer.from(text.slice(4), 'hex')
const hex = (data) => 'hex:' + Buffer.from(data).toString('hex')
const word = (name) => WORDS[name] ?? name.replace(/_(.)/g, (_, letter) => letter.toUpperCase())
const WORD_NAMES = Object.fromEntries([...BOOLEANS, 'message_expiry_interval', 'content_type',
  'response_topic', 'correlation_data', 'subscription_identifiers', 'session_expiry_interval',
  'assigned_client_identifier', 'server_keep_alive', 'authentication_method',
  'authentication_data', 'will_delay_interval', 'response_information', 'server_reference',
  'reason_string', 'receive_maximum', 'topic_alias_maximum', 'topic_alias', 'maximum_qos',
  'maximum_packet_size', 'user_properties'].map((name) => [word(name), name]))

function readProperties (properties) {
  const pairs = Array.isArray(properties) ? properties : Object.entries(properties ?? {})
  const found = {}
  for (const [name, value] of pairs) {
    if (typeof name !== 'string') throw new Cannot('properties have names, not identifiers')
    if (name === 'user_properties') {
      found.userProperties ??= {}
      const several = Array.isArray(properties) ? [value] : value
      for (const [key, text] of several) {
        if (key in found.userProperties && key !== Object.keys(found.userProperties).at(-1)) {
          throw new Cannot('user properties with one name stand together')
        }
        const before = found.userProperties[key]
        found.userProperties[key] = before === undefined ? text : [].concat(before, text)
      }
    } else if (name === 'subscription_identifiers') {
      const before = found.subscriptionIdentifier
      const all = [].concat(before ?? [], value)
      found.subscriptionIdentifier = all.length === 1 ? all[0] : all
    } else if (word(name) in found) {
      throw new Cannot('a property has one value')
    } else if (BOOLEANS.includes(name)) {
      if (value !== 0 && value !== 1) throw new Cannot(`${name} is a boolean`)
      found[word(name)] = value === 1
    } else {
      const isBinary = typeof value === 'string' && value.startsWith('hex:')
      found[word(name)] = isBinary ? binary(value) : value
    }
  }
  return Object.keys(found).length ? found : undefined
}

function writeProperties (properties) {
  const found = {}
  for (const [key, value] of Object.entries(properties ?? {})) {
    const name = WORD_NAMES[key] ?? key
    if (name === 'user_properties') {
      found[name] = Object.entries(value).flatMap(
        ([left, right]) => [].concat(right).map((text) => [left, text]))
    } else if (name === 'subscription_identifiers') {
      found[name] = [].concat(value)
    } else if (Buffer.isBuffer(value)) {
      found[name] = hex(value)
    } else if (Array.isArray(value)) {
      found[name] = value.map((each) => Buffer.isBuffer(each) ? hex(each) : each)
    } else {
      found[name] = typeof value === 'boolean' ? Number(value) : value
    }
  }
  return found
}

function describe (packet, version) {
  const type = NAMES[packet.cmd]
  const form = { type }
  if (version === '5.0') form.properties = writeProperties(packet.properties)
  const code = packet.reasonCode ?? packet.returnCode ?? 0
  if (type === 'Publish') {
    Object.assign(form, { topic_name: packet.topic.toString(), payload: hex(packet.payload) })
    Object.assign(form, { qos: packet.qos, retain: packet.retain, dup: packet.dup })
    form.packet_id = packet.messageId ?? 0
  } else if (type === 'Connect') {
    Object.assign(form, { client_id: packet.clientId, version: packet.protocolVersion })
    Object.assign(form, { clean_start: packet.clean, keep_alive: packet.keepalive })
    form.user_name = packet.username ?? null
    form.password = packet.password == null ? null : hex(packet.password)
    form.will = null
    if (packet.will) {
      const { topic, payload, qos, retain, properties } = packet.will
      form.will = { topic_name: topic.toString(), payload: hex(payload), qos, retain }
      if (version === '5.0') form.will.properties = writeProperties(properties)
    }
  } else if (type === 'ConnAck') {
    Object.assign(form, { reason: code, session_present: packet.sessionPresent })
  } else if (type === 'Subscribe') {
    form.packet_id = packet.messageId
    form.subscriptions = packet.subscriptions.map((each) => {
      const entry = { topic_filter: each.topic, qos: each.qos }
      if (version !== '5.0') return entry
      const { nl, rap, rh } = each
      return { ...entry, no_local: nl, retain_as_published: rap, retain_handling: rh }
    })
  } else if (type === 'Unsubscribe') {
    Object.assign(form, { packet_id: packet.messageId, topic_filters: packet.unsubscriptions })
  } else if (type === 'SubAck' || type === 'UnsubAck') {
    form.packet_id = packet.messageId
    if (packet.granted) form.reasons = [...packet.granted]
  } else if (type === 'Disconnect' || type === 'Auth') {
    form.reason = code
  } else if (type !== 'PingReq' && type !== 'PingResp') {
    Object.assign(form, { packet_id: packet.messageId, reason: code })
  }
  return form
}

function decode (request) {
  const data = Buffer.from(request.hex, 'hex')
  const parser = mqtt.parser({ protocolVersion: LEVELS[request.version] })
  let answer
  parser.on('packet', (packet) => { answer ??= { packet: describe(packet, request.version) } })
  parser.on('error', (problem) => { answer ??= { refused: problem.message } })
  const left = parser.parse(data)
  if (answer?.packet) answer.taken = data.length - left
  return answer ?? { incomplete: true }
}

function read (form, version) {
  const type = form.type
  const packet = { cmd: type.toLowerCase(), properties: readProperties(form.properties) }
  if ('packet_id' in form) packet.messageId = form.packet_id
  if (type === 'Publish') {
    const { topic_name: topic, qos = 0, retain = false, dup = false } = form
    Object.assign(packet, { topic, qos, retain, dup, payload: binary(form.payload ?? 'hex:') })
  } else if (type === 'Connect') {
    Object.assign(packet, { protocolId: 'MQTT', protocolVersion: form.version ?? 5 })
    Object.assign(packet, { clientId: form.client_id ?? '', clean: form.clean_start ?? true })
    packet.keepalive = form.keep_alive ?? 0
    if (form.user_name != null) packet.username = form.user_name
    if (form.password != null) packet.password = binary(form.password)
    if (form.will) {
      const { topic_name: topic, qos = 0, retain = false, payload, properties } = form.will
      packet.will = { topic, qos, retain, payload: binary(payload ?? 'hex:') }
      packet.will.properties = readProperties(properties)
    }
  } else if (type === 'Subscribe') {
    packet.subscriptions = form.subscriptions.map((each) => {
      const { topic_filter: topic, qos = 0 } = each
      const { no_local: nl = false, retain_as_published: rap = false } = each
      return { topic, qos, nl, rap, rh: each.retain_handling ?? 0 }
    })
  } else if (type === 'Unsubscribe') {
    packet.unsubscriptions = form.topic_filters
  } else if (type === 'SubAck' || type === 'UnsubAck') {
    packet.granted = form.reasons ?? []
  } else {
    packet[version === '5.0' ? 'reasonCode' : 'returnCode'] = form.reason ?? 0
    if (type === 'ConnAck') packet.sessionPresent = form.session_present ?? false
  }
  return packet
}

function answerTo (request) {
  const versions = { '3.1.1': TYPES.filter((type) => type !== 'Auth'), '5.0': TYPES }
  if (request.do === 'hello') {
    return { name: 'mqtt-packet', version: packageVersion, decode: versions, encode: versions }
  }
  try {
    if (request.do === 'decode') return decode(request)
    const level = LEVELS[request.version]
    const data = mqtt.generate(read(request.packet, request.version), { protocolVersion: level })
    return { hex: data.toString('hex') }
  } catch (problem) {
    if (problem instanceof Cannot) return { cannot: problem.message }
    return { refused: `${problem.name}: ${problem.message}` }
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line)
  process.stdout.write(JSON.stringify({ id: request.id, ...answerTo(request) }) + '\n')
}
