// Takes steps as JSON from standard input, and prints their results.
import { readFileSync } from "node:fs";
import mqtt from "mqtt";
import { perform } from "./steps.mjs";

const results = [];
for (const step of JSON.parse(readFileSync(0, "utf8"))) {
  results.push(await perform(mqtt, step));
}
console.log(JSON.stringify(results));
