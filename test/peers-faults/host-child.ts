import { join } from "node:path";
import type { RealHost } from "../peers/hosts/real-host.ts";
import type { HostSpec } from "./host-process.ts";
import { BLOCK_BYTES, type World } from "./world.ts";

const PROGRAM = join(import.meta.dir, "host-process.ts");

/** Another host of the cluster, in a process that can be killed. */
export class HostChild implements AsyncDisposable {
  readonly worker: RealHost["worker"];
  readonly endpoints: RealHost["endpoints"];
  readonly #process: Bun.Subprocess<"ignore", "pipe", "inherit">;

  private constructor(
    worker: string,
    endpoints: RealHost["endpoints"],
    process: Bun.Subprocess<"ignore", "pipe", "inherit">,
  ) {
    this.worker = worker as RealHost["worker"];
    this.endpoints = endpoints;
    this.#process = process;
  }

  static async start(
    world: World,
    spec: Omit<HostSpec, "transport" | "credentials" | "arenaBytes">,
  ): Promise<HostChild> {
    const whole: HostSpec = {
      ...spec,
      transport: world.transport,
      credentials: world.cluster.host(spec.worker),
      arenaBytes: Math.max(spec.names.length, 64) * BLOCK_BYTES * 2,
    };
    const child = Bun.spawn([process.execPath, PROGRAM], {
      env: { ...process.env, HOST_SPEC: JSON.stringify(whole) },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "inherit",
    });
    const reader = child.stdout.getReader();
    let said = "";
    while (!said.includes("\n")) {
      const { value, done } = await reader.read();
      if (done) throw new Error(`${spec.worker} ended before it listened: ${said}`);
      said += new TextDecoder().decode(value);
    }
    reader.releaseLock();
    return new HostChild(spec.worker, JSON.parse(said.slice(0, said.indexOf("\n"))), child);
  }

  kill(): void {
    this.#process.kill("SIGKILL");
  }

  get ended(): Promise<number> {
    return this.#process.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.kill();
    await this.ended;
  }
}
