/**
 * Runs mock engines in a process of its own. Prints their addresses and ends with standard input.
 * Arguments are kinds of engines; with "events" they report that they publish KV events.
 */
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { bindPublisher } from "../../../src/events/zmtp/index.ts";
import { MockEngine, POLITE } from "./mock-engine.ts";

const MODEL = "acme/tiny-chat";
const words = process.argv.slice(2);
const kinds = words.filter((word) => word === "vllm" || word === "sglang");
const engines = kinds.map((kind) => new MockEngine(kind, MODEL));
let basics = POLITE;
if (words.includes("events")) {
  const options = { clock: systemClock, random: systemRandom, endpoint: "tcp://127.0.0.1:0" };
  const { endpoint } = await bindPublisher(options);
  basics = { ...POLITE, eventsEndpoint: endpoint.replace("127.0.0.1", "*") };
  for (const engine of engines) engine.manners = basics;
}
const control = Bun.serve({
  port: 0,
  hostname: "127.0.0.1",
  async fetch(request) {
    if (request.method === "POST") {
      const manners = { ...basics, ...((await request.json()) as object) };
      for (const engine of engines) engine.manners = manners;
    }
    const seen = engines.map((engine) => engine.seen.length);
    for (const engine of engines) if (engine.seen.length > 4_096) engine.seen.length = 0;
    const [live, aborted] = [engines.map(({ live }) => live), engines.map((one) => one.aborted)];
    return Response.json({ live, aborted, seen });
  },
});
const urls = engines.map(({ url }) => url);
console.log(JSON.stringify({ urls, control: `http://127.0.0.1:${control.port}` }));
for await (const _ of Bun.stdin.stream());
process.exit(0);
