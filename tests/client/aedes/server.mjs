// A plain MQTT server on a port that the system chooses, which is its first line.
import { createServer } from "node:net";
import { Aedes } from "aedes";

const aedes = await Aedes.createBroker();
const server = createServer(aedes.handle);
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
