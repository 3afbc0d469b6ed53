import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ensureEngine } from "../../engines/kit/install.ts";
import { ensureModel } from "../../engines/kit/model.ts";
import { freePort } from "../../engines/kit/server.ts";
import { Vllm } from "../../engines/kit/vllm.ts";
import { clientRows, type Row } from "./client-rows.ts";
import { lineWith, startEngines, startRouter } from "./processes.ts";
import { backRow, stopRow } from "./stop-row.ts";

const MODEL = "acme/tiny-chat";
const POOLING = ["/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank"];
const CHAT_TEMPLATE =
  "{% for message in messages %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>" +
  "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";

export interface RowsOptions {
  /** Executable to test instead of the sources. */
  readonly binary: string | null;
  readonly onProgress: (text: string) => void;
}

async function withFolder<T>(run: (folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), "hearth-proxy-"));
  try {
    return await run(folder);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** Client libraries and stopped processes with mock engines, each in a process of its own. */
export function standInRows({ binary, onProgress }: RowsOptions): Promise<Row[]> {
  return withFolder(async (folder) => {
    await using first = await startEngines(["vllm"]);
    await using second = await startEngines(["vllm", "events"]);
    await using core = await startPublisher();
    const manners = (how: object) =>
      fetch(first.control, { method: "POST", body: JSON.stringify(how) });
    await manners({ eventsEndpoint: core.endpoint });
    const urls = [...first.urls, ...second.urls];
    await using router = await startRouter(folder, urls, binary);
    const { url } = router;
    onProgress("client libraries");
    const rows = await clientRows({ url, model: MODEL, missing: [] });
    const shared = { url, model: MODEL };
    onProgress("SIGSTOP of an engine and its server");
    const whole = { stop: () => first.signal("SIGSTOP"), go: () => first.signal("SIGCONT") };
    rows.push(await stopRow({ ...shared, ...whole, what: "an engine and its server" }));
    rows.push(await backRow(url, urls.length));
    onProgress("SIGSTOP of an engine behind its server");
    const alone = {
      stop: () => {
        void manners({ eventsEndpoint: core.endpoint, headMs: 60_000 });
        core.signal("SIGSTOP");
      },
      go: () => {
        void manners({ eventsEndpoint: core.endpoint });
        core.signal("SIGCONT");
      },
    };
    rows.push(await stopRow({ ...shared, ...alone, what: "an engine behind its server" }));
    rows.push(await backRow(url, urls.length));
    return rows;
  });
}

async function startPublisher() {
  const program = [process.execPath, join(import.meta.dir, "publisher-main.ts")];
  const child = Bun.spawn(program, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
  const endpoint = await lineWith(child.stdout, (line) => (line.startsWith("tcp:") ? line : null));
  return {
    endpoint,
    signal: (name: NodeJS.Signals) => child.kill(name),
    async [Symbol.asyncDispose]() {
      child.kill("SIGKILL");
      await child.exited;
    },
  };
}

/** The same rows with two real vLLM servers with KV events. Throws `Skip`. */
export async function vllmRows({ binary, onProgress }: RowsOptions): Promise<Row[]> {
  const engine = await ensureEngine("vllm");
  const model = await ensureModel(engine, { seed: 1 });
  return withFolder(async (folder) => {
    const template = join(folder, "chat.jinja");
    await Bun.write(template, CHAT_TEMPLATE);
    const start = (name: string) => {
      const events = { publisher: "zmq", topic: "", enable_kv_cache_events: true };
      const endpoint = `tcp://*:${freePort()}`;
      const replay = { replay_endpoint: `tcp://*:${freePort()}` };
      const config = JSON.stringify({ ...events, endpoint, ...replay });
      const args = ["--chat-template", template, "--kv-events-config", config];
      return Vllm.start({ name, engine, model, folder, args });
    };
    onProgress("starting two vLLM servers");
    await using first = await start("first");
    await using second = await start("second");
    const urls = [first.url, second.url];
    const served = { model: "tiny", tokenizer: model.folder, chatTemplate: template };
    await using router = await startRouter(folder, urls, binary, served);
    const { url } = router;
    onProgress("client libraries");
    const rows = await clientRows({ url, model: "tiny", missing: POOLING });
    const shared = { url, model: "tiny" };
    const groups = [
      ["an engine and its server", (name: NodeJS.Signals) => void first.signal(name)],
      ["an engine behind its server", coreSignal(first.pid)],
    ] as const;
    for (const [what, signal] of groups) {
      onProgress(`SIGSTOP of ${what}`);
      const both = { stop: () => signal("SIGSTOP"), go: () => signal("SIGCONT") };
      rows.push(await stopRow({ ...shared, ...both, what }));
      rows.push(await backRow(url, urls.length));
    }
    return rows;
  });
}

/** Sends signals to the engine cores among a server's descendants. */
function coreSignal(server: number): (name: NodeJS.Signals) => void {
  const parents = new Map<number, number>();
  const cores = new Set<number>();
  for (const name of readdirSync("/proc")) {
    if (!/^[0-9]+$/.test(name)) continue;
    try {
      const status = readFileSync(`/proc/${name}/status`, "utf8");
      parents.set(Number(name), Number(/^PPid:\t([0-9]+)$/m.exec(status)?.[1]));
      const command = readFileSync(`/proc/${name}/cmdline`, "utf8");
      if (command.includes("EngineCore")) cores.add(Number(name));
    } catch {
      // The process has ended meanwhile.
    }
  }
  const isBelow = (id: number): boolean => {
    const parent = parents.get(id);
    return parent === server || (parent !== undefined && parent > 1 && isBelow(parent));
  };
  const own = [...cores].filter((id) => isBelow(id));
  if (own.length === 0) throw new Error("the server has no process named EngineCore");
  return (name) => {
    for (const id of own) process.kill(id, name);
  };
}
