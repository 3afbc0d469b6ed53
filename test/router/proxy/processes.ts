import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { writeTokenizer } from "./tokenizer-files.ts";

const ROOT = join(import.meta.dir, "../../..");

/** Reads a process's output line by line until `find` returns a value. */
export async function lineWith<T>(
  stream: ReadableStream<Uint8Array>,
  find: (line: string) => T | null,
) {
  const decoder = new TextDecoder();
  let text = "";
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error(`a process ended before it was ready: ${text}`);
    text += decoder.decode(value, { stream: true });
    for (const line of text.split("\n")) {
      const found = find(line);
      if (found === null) continue;
      // Discards later output, which must not fill the pipe.
      void (async () => {
        while (!(await reader.read()).done);
      })();
      return found;
    }
  }
}

export interface Engines extends AsyncDisposable {
  readonly urls: readonly string[];
  readonly control: string;
  signal(name: NodeJS.Signals): void;
}

export async function startEngines(
  words: readonly string[] = ["vllm", "sglang"],
): Promise<Engines> {
  const main = join(import.meta.dir, "engines-main.ts");
  const process_ = Bun.spawn([process.execPath, main, ...words], {
    stdin: "pipe",
    stdout: "pipe",
    stderr: "inherit",
  });
  const told = await lineWith(process_.stdout, (line) =>
    line.endsWith("}") ? (JSON.parse(line) as { urls: string[]; control: string }) : null,
  );
  return {
    ...told,
    signal: (name) => process_.kill(name),
    async [Symbol.asyncDispose]() {
      await process_.stdin.end();
      await process_.exited;
    },
  };
}

export interface RouterProcess extends AsyncDisposable {
  /** URL of the proxy. */
  readonly url: string;
}

export interface ServedModel {
  readonly model: string;
  readonly tokenizer: string;
  /** Chat template of real engines. */
  readonly chatTemplate?: string;
}

/** Starts `hearth router`, from the sources or an executable, in front of these engines. */
export async function startRouter(
  folder: string,
  engines: readonly string[],
  binary: string | null,
  served: ServedModel = { model: "acme/tiny-chat", tokenizer: writeTokenizer(folder) },
  /** Endpoint of the first engine's KV events. */
  events: string | null = null,
): Promise<RouterProcess> {
  const { model, tokenizer, chatTemplate } = served;
  // Real engines publish events and are followed. Mock engines publish none.
  const isReal = chatTemplate !== undefined;
  const workers = engines.map((url, i) => {
    const followed = i === 0 && events !== null ? `events = "${events}"\n` : "";
    return `[workers.engine-${i}]\nmodel = "${model}"\nurl = "${url}"\n${followed}`;
  });
  const file = join(folder, "router.toml");
  writeFileSync(
    file,
    `[router]\nid = "proxy-test"\nkv_events = ${isReal || events !== null}\n[api]\nlisten = "127.0.0.1:0"\n` +
      '[proxy]\nlisten = "127.0.0.1:0"\n[models.tiny]\n' +
      `model = "${model}"\ntokenizer = "${tokenizer}"\n` +
      `${isReal ? `chat_template = "${chatTemplate}"\n` : ""}${workers.join("")}`,
  );
  const program = binary === null ? [process.execPath, "src/main.ts"] : [binary];
  const process_ = Bun.spawn([...program, "router", "--config", file], {
    cwd: ROOT,
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
  });
  const url = await lineWith(process_.stderr, (line) => {
    return /proxy listening .*?(http:\/\/[^\s"]+)/.exec(line)?.[1] ?? null;
  });
  return {
    url,
    async [Symbol.asyncDispose]() {
      process_.kill("SIGTERM");
      await process_.exited;
    },
  };
}
