import type { Receipt } from "../../../src/control/index.ts";
import { EXAMPLES } from "../examples.ts";
import { outcomesOf, type Stage } from "../stage.ts";
import { all, namesOf, PROMPT, UNPINNED } from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

async function pins(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(...PROMPT, ...UNPINNED);
  const body = '{"block_hashes": [111, 222, 333, 444]}';
  const pinned = await host.post<object>("/hicache/pin_blocks", body);
  claims.equal("pins are counted", pinned, { pinned_count: 3 });
  const flush = () => fetch(`${host.url}/flush_cache`, { method: "POST", keepalive: false });
  const flushed = await (await flush()).text();
  claims.that("a flush says what stayed", /Kept 3 blocks: 3 by pin/.test(flushed), flushed);
  claims.equal("the pinned", await host.read(namesOf(PROMPT)), all("ok", PROMPT));
  claims.equal("and nothing else", await host.read(namesOf(UNPINNED)), all("miss", UNPINNED));
  const let_go = await host.post<object>("/hicache/unpin_blocks", body);
  claims.equal("unpins are counted", let_go, { unpinned_count: 3 });
  await flush();
  claims.equal("then all go", await host.read(namesOf(PROMPT)), all("miss", PROMPT));
}

async function commands(stage: Stage): Promise<void> {
  const { claims } = stage;
  const host = await stage.host();
  await host.store(...PROMPT);
  const command = EXAMPLES.cache.replace("}", ', "id": "c-1", "issuer": "router-1"}');
  const receipt = await host.post<Receipt>("/v1/commands", command);
  claims.equal("the same command", outcomesOf(receipt), ["done", "done", "done"]);
  const path = "/v1/commands/c-1?issuer=router-1";
  claims.equal("its receipt is found again", (await host.get<Receipt>(path)).counts.done, 3);
  const twice = await stage.send(host.worker, command);
  claims.equal("over NATS it is known already", twice.duplicate, true);
  claims.equal("and done once", (await host.pins()).length, 1);
  const why = await host.get<object>("/v1/explain?names=111,112");
  claims.that("why a block is missing", JSON.stringify(why).includes("never_stored"), why);
}

export const HTTP: readonly Scenario[] = [
  { name: "pins and flushes in SGLang's shapes", kind: "http", run: pins },
  { name: "commands over HTTP", kind: "http", run: commands },
];
