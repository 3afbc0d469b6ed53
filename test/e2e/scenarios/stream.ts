import type { Receipt } from "../../../src/control/index.ts";
import { waitFor } from "../../support/wait.ts";
import { EXAMPLES } from "../examples.ts";
import { outcomesOf, type Stage } from "../stage.ts";
import { all, namesOf, PROMPT, SESSION, tiersOf } from "./blocks.ts";
import type { Scenario } from "./scenario.ts";

const STREAM = "KV_CONTROL";
const BUCKET = "kv-workers";
const WORKER = "gpu-01";
const PATIENCE_MS = 15_000;

/** The operator's: a stream that keeps the worker's commands, and a bucket of who is there. */
async function withStream(stage: Stage, run: () => Promise<void>): Promise<void> {
  const streams = [
    { name: STREAM, subjects: [`kv-control-${WORKER}`] },
    {
      ...{ name: `KV_${BUCKET}`, subjects: [`$KV.${BUCKET}.>`], max_msgs_per_subject: 1 },
      ...{ discard: "new", deny_delete: true, allow_rollup_hdrs: true, allow_direct: true },
    },
  ];
  const ask = (verb: string, name: string, body: object) => {
    const data = Buffer.from(JSON.stringify(body));
    return stage.nats.request(`$JS.API.STREAM.${verb}.${name}`, data);
  };
  for (const stream of streams) await ask("CREATE", stream.name, { ...stream, storage: "memory" });
  try {
    await run();
  } finally {
    for (const { name } of streams) await ask("DELETE", name, {});
  }
}

async function kept(stage: Stage): Promise<void> {
  const { claims, nats } = stage;
  const replies = { reply_prefixes: "_INBOX,answers" };
  const streams = { command_stream: STREAM, workers_bucket: BUCKET, ...replies };
  const host = await stage.host({ nats: streams });
  await host.store(...PROMPT, ...SESSION);
  const answers: Receipt[] = [];
  nats.subscribe("answers.here", ({ data }) => answers.push(JSON.parse(`${Buffer.from(data)}`)));
  const send = (command: string, id: string) => {
    const data = Buffer.from(command.replace(/}$/, `, "id": "${id}", "issuer": "router-1"}`));
    nats.publish(`kv-control-${WORKER}`, data, { headers: { "Hearth-Reply": "answers.here" } });
  };
  send(EXAMPLES.cache, "1");
  await waitFor(() => answers.length === 1, PATIENCE_MS, "the first receipt");
  claims.equal("taken from the stream", outcomesOf(answers[0]!), ["done", "done", "done"]);
  const key = `$JS.API.DIRECT.GET.KV_${BUCKET}.$KV.${BUCKET}.${WORKER}`;
  const [entry] = await nats.request(key, new Uint8Array());
  claims.equal("the bucket has the worker", JSON.parse(`${Buffer.from(entry!.data)}`).id, WORKER);
  await host.stop("SIGKILL");
  send(EXAMPLES.pause, "2");
  // As somebody who heard no answer would.
  send(EXAMPLES.cache, "1");
  await nats.flush();
  await host.start();
  await waitFor(() => answers.length === 3, PATIENCE_MS, "the receipts of meanwhile");
  claims.equal("what came while it was down", outcomesOf(answers[1]!), ["done", "done"]);
  claims.equal("has its effect", await tiersOf(host, SESSION), ["ssd", "ssd"]);
  claims.equal("what came twice is known", answers[2]!.duplicate, true);
  claims.equal("and was done once", (await host.pins()).length, 1);
  claims.equal("all is readable", await host.read(namesOf([...PROMPT, ...SESSION])), [
    ...all("ok", [...PROMPT, ...SESSION]),
  ]);
}

export const STREAMS: readonly Scenario[] = [
  {
    name: "commands that a stream keeps",
    kind: "transport",
    run: (stage) => withStream(stage, () => kept(stage)),
  },
];
