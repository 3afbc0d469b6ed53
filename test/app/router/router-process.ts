import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { waitFor } from "../../support/index.ts";
import { FROM_CHECKOUT, type LogLine } from "../agent-process.ts";

const START_MS = 15_000;

export interface RouterProcessOptions {
  readonly command?: readonly string[];
  /** Lines of its file; small and fit for any host where they do not say. */
  readonly config?: string;
  readonly words?: readonly string[];
}

/** A router as it ships: a process with its configuration and log. */
export class RouterProcess implements AsyncDisposable {
  readonly folder = mkdtempSync(join(tmpdir(), "hearth-"));
  readonly configPath = join(this.folder, "router.toml");
  readonly log: LogLine[] = [];
  readonly words: string[] = [];
  readonly process: Bun.Subprocess<"ignore", "ignore", "pipe">;
  readonly #logEnded: Promise<void>;

  constructor({ command = FROM_CHECKOUT, config = "", words = [] }: RouterProcessOptions = {}) {
    this.configure(config);
    const all = [...command, "router", "--config", this.configPath, "--listen", "127.0.0.1:0"];
    this.process = Bun.spawn([...all, ...words], {
      cwd: this.folder,
      stdin: "ignore",
      stdout: "ignore",
      stderr: "pipe",
    });
    this.#logEnded = this.#readLog();
  }

  static async start(options: RouterProcessOptions = {}): Promise<RouterProcess> {
    const router = new RouterProcess(options);
    try {
      await router.logged("router ready");
      return router;
    } catch (error) {
      await router[Symbol.asyncDispose]();
      throw error;
    }
  }

  configure(config: string): void {
    writeFileSync(this.configPath, `[log]\nformat = "json"\n${config}`);
  }

  async #readLog(): Promise<void> {
    let rest = "";
    for await (const chunk of this.process.stderr.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (line.startsWith("{")) this.log.push(JSON.parse(line));
        else this.words.push(line);
      }
    }
  }

  logged(message: string): Promise<LogLine> {
    const find = () => {
      const found = this.log.find((line) => line.message.startsWith(message));
      if (found === undefined && this.process.exitCode !== null) {
        throw new Error(`the router ended: ${this.words.join("\n")}`);
      }
      return found;
    };
    return waitFor(find, START_MS, `the log line "${message}"`);
  }

  async get(path: string, init: RequestInit = {}): Promise<Response> {
    const url = (await this.logged("api listening")).url as string;
    return fetch(url + path, { keepalive: false, ...init });
  }

  post(path: string, body: unknown): Promise<Response> {
    return this.get(path, { method: "POST", body: JSON.stringify(body) });
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests read the fields that they name
  async json(path: string): Promise<any> {
    return (await this.get(path)).json();
  }

  async metric(name: string): Promise<number> {
    const text = await (await this.get("/metrics")).text();
    const line = text.split("\n").find((one) => one.startsWith(`${name} `));
    if (line === undefined) throw new Error(`no metric ${name}`);
    return Number(line.split(" ").at(-1));
  }

  async exited(): Promise<number> {
    const code = await this.process.exited;
    await this.#logEnded;
    return code;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.process.kill("SIGKILL");
    await this.exited();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
