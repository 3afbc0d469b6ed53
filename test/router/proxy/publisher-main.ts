/**
 * Runs a publisher of KV events in a process of its own. Prints its endpoint in vLLM's notation.
 */
import { systemClock, systemRandom } from "../../../src/core/index.ts";
import { bindPublisher } from "../../../src/events/zmtp/index.ts";

const publisher = await bindPublisher({
  endpoint: "tcp://127.0.0.1:0",
  clock: systemClock,
  random: systemRandom,
});
console.log(publisher.endpoint.replace("127.0.0.1", "*"));
for await (const _ of Bun.stdin.stream());
process.exit(0);
