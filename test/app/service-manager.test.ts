import { expect, test } from "bun:test";
import { join } from "node:path";
import { createServiceManager } from "../../src/app/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describePython, ManualClock, tempDir, waitFor } from "../support/index.ts";
import { AgentProcess } from "./agent-process.ts";

interface Notice {
  readonly us: number;
  readonly text: string;
}

/** A service manager that only listens. */
class Receiver implements AsyncDisposable {
  readonly notices: Notice[] = [];
  readonly #process: Bun.Subprocess<"ignore", "pipe", "inherit">;
  #bound = false;

  constructor(python: string, path: string) {
    this.#process = Bun.spawn([python, join(import.meta.dir, "notify-receiver.py"), path], {
      stdin: "ignore",
      stdout: "pipe",
      stderr: "inherit",
    });
    void this.#read();
  }

  static async start(python: string, path: string): Promise<Receiver> {
    const receiver = new Receiver(python, path);
    await waitFor(() => receiver.#bound);
    return receiver;
  }

  async #read(): Promise<void> {
    let rest = "";
    for await (const chunk of this.#process.stdout.pipeThrough(new TextDecoderStream())) {
      const lines = (rest + chunk).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (line === "bound") this.#bound = true;
        else this.notices.push(JSON.parse(line));
      }
    }
  }

  /** The first notice from the `from`-th on that begins so. */
  until(start: string, from = 0): Promise<Notice> {
    const find = () => this.notices.slice(from).find(({ text }) => text.startsWith(start));
    return waitFor(find, 10_000, `the notice ${start}`);
  }

  pings(): Notice[] {
    return this.notices.filter(({ text }) => text === "WATCHDOG=1");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#process.exited;
  }
}

const WATCHDOG_MS = 300;

describePython("under a service manager", (python) => {
  test("an agent notifies systemd of ready, reload, stop and watchdog", async () => {
    const socket = join(tempDir(), "notify");
    await using manager = await Receiver.start(python, socket);
    const environment = { NOTIFY_SOCKET: socket, WATCHDOG_USEC: `${WATCHDOG_MS * 1_000}` };
    await using agent = await AgentProcess.start({ environment });
    const ready = await manager.until("READY=1");
    expect(ready.text).toMatch(/^READY=1\nSTATUS=\S/);
    // A driver that hangs takes longer than the unit allows, and the event loop with it.
    const opening = await manager.until("EXTEND_TIMEOUT_USEC=180000000\nSTATUS=opening devices");
    expect(manager.notices.indexOf(opening)).toBeLessThan(manager.notices.indexOf(ready));
    await manager.until("STATUS=serving, 16MiB");
    await waitFor(() => manager.pings().length >= 5);
    const pings = manager.pings().map(({ us }) => us);
    const gaps = pings.slice(1).map((us, i) => (us - pings[i]!) / 1_000);
    // Half the time it has, with some room for a busy host.
    expect(gaps.toSorted((a, b) => a - b)[gaps.length >> 1]).toBeLessThan(WATCHDOG_MS);
    const seen = manager.notices.length;
    agent.process.kill("SIGHUP");
    const reloading = await manager.until("RELOADING=1", seen);
    const [, monotonicUs] = /^RELOADING=1\nMONOTONIC_USEC=(\d+)$/.exec(reloading.text)!;
    // The same clock as systemd's: later than the earlier messages, not later than its arrival.
    expect(Number(monotonicUs)).toBeLessThanOrEqual(reloading.us);
    expect(Number(monotonicUs)).toBeGreaterThan(ready.us);
    const again = await manager.until("READY=1", seen);
    expect(manager.notices.indexOf(again)).toBeGreaterThan(manager.notices.indexOf(reloading));
    expect(await agent.kill("SIGTERM")).toBe(0);
    await manager.until("STOPPING=1", seen);
  });

  test("an abstract socket works and another process's watchdog is not fed", async () => {
    const socket = `@hearth-test-${process.pid}`;
    await using manager = await Receiver.start(python, socket);
    const clock = new ManualClock();
    const environment = { NOTIFY_SOCKET: socket, WATCHDOG_USEC: "1000000" };
    {
      using mine = createServiceManager(loadNative(), clock, {
        ...environment,
        WATCHDOG_PID: `${process.pid}`,
      });
      mine.ready("here");
      clock.advance(1_600);
      await waitFor(() => manager.pings().length === 3);
    }
    {
      using other = createServiceManager(loadNative(), clock, {
        ...environment,
        WATCHDOG_PID: `${process.pid + 1}`,
      });
      clock.advance(60_000);
      other.stopping();
      await manager.until("STOPPING=1");
    }
    expect(manager.pings()).toHaveLength(3);
    expect(clock.pending).toBe(0);
  });

  test("without a service manager nothing is sent, and a missing socket is ignored", () => {
    const clock = new ManualClock();
    for (const NOTIFY_SOCKET of [undefined, "", join(tempDir(), "gone")]) {
      const environment = { NOTIFY_SOCKET, WATCHDOG_USEC: "1000000" };
      using manager = createServiceManager(loadNative(), clock, environment);
      manager.ready("here");
      manager.reloading();
      clock.advance(5_000);
      manager.stopping();
    }
    expect(clock.pending).toBe(0);
  });
});
