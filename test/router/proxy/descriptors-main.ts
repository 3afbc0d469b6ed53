import { closeSync, openSync } from "node:fs";
import { waitFor } from "../../support/index.ts";
import { MODEL, Rig } from "./rig.ts";

/** Uses up all descriptors of this process during a request and health checks. */
let isShort = false;
const onShort = () => {
  isShort = true;
};
await using rig = await Rig.open({ settings: { healthEveryMs: 20 }, onShort });
const engine = rig.engine("a");
await waitFor(() => engine.healthChecks > 0);
const body = JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "Hello?" }] });
const ask = () => {
  const headers = { connection: "close" };
  return rig.proxy.fetch(
    new Request("http://proxy/v1/chat/completions", { method: "POST", body, headers }),
  );
};
const taken: number[] = [];
try {
  for (;;) taken.push(openSync("/dev/null", "r"));
} catch {
  // No descriptor is left.
}
const refused = await ask();
await waitFor(() => isShort);
for (const descriptor of taken) closeSync(descriptor);
const answered = await ask();
const { retries, timesOut } = rig.proxy.snapshot();
console.log(
  JSON.stringify({
    ...{ taken: taken.length > 0, refused: refused.status, answered: answered.status },
    ...{ retries, timesOut, faults: rig.faults.map(String) },
  }),
);
process.exit(0);
