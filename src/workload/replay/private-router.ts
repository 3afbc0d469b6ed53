import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { HearthError } from "../../core/index.ts";
import { makeFolder, OwnProcess } from "./own-process.ts";

export interface PrivateRouterOptions {
  /** Keys of its configuration, by section, written as in a file: `"random"`. */
  readonly settings: Readonly<Record<string, Readonly<Record<string, string>>>>;
  readonly signal?: AbortSignal;
}

/** A router of one's own, as `PrivateAgent` is an agent. Disposing leaves nothing behind. */
export class PrivateRouter implements AsyncDisposable {
  readonly #folder: string;
  readonly #process: OwnProcess;

  private constructor(folder: string, options: PrivateRouterOptions) {
    this.#folder = folder;
    const file = join(folder, "router.toml");
    writeFileSync(file, routerConfigText(options));
    const words = ["router", "--config", file, "--private", folder];
    this.#process = new OwnProcess({ name: "router", folder, words });
  }

  /** Resolves when its API listens. Throws what it said where it cannot. */
  static async start(options: PrivateRouterOptions): Promise<PrivateRouter> {
    const router = new PrivateRouter(makeFolder(), options);
    try {
      await router.#process.answers(options.signal);
      return router;
    } catch (error) {
      await router[Symbol.asyncDispose]();
      throw error;
    }
  }

  get apiUrl(): string {
    return this.#process.apiUrl;
  }

  get pid(): number {
    return this.#process.pid;
  }

  async get<T>(path: string): Promise<T> {
    return JSON.parse(await this.#process.read(path));
  }

  /** Throws ENGINE_REFUSED with the router's words where it answers with an error. */
  async post<T>(path: string, body: string): Promise<T> {
    const headers = { "content-type": "application/json" };
    const answer = JSON.parse(await this.#process.read(path, { method: "POST", headers, body }));
    if (answer.code === undefined) return answer;
    throw new HearthError("ENGINE_REFUSED", `the router answers ${answer.code}: ${answer.detail}`);
  }

  ended(): Promise<HearthError | null> {
    return this.#process.ended();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#process.end("SIGTERM");
    rmSync(this.#folder, { recursive: true, force: true });
  }
}

/** The configuration of a router of one's own. */
export function routerConfigText({ settings }: Pick<PrivateRouterOptions, "settings">): string {
  const all = { api: { listen: '"127.0.0.1:0"' }, log: { format: '"json"' }, ...settings };
  const lines = Object.entries(all).flatMap(([section, keys]) => [
    `[${section}]`,
    ...Object.entries(keys).map(([key, value]) => `${key} = ${value}`),
  ]);
  return `${lines.join("\n")}\n`;
}
