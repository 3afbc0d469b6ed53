import { rmSync } from "node:fs";
import { messageOf } from "../core/index.ts";
import { crashPoint } from "../native/index.ts";
import type { Logger } from "../observability/index.ts";
import { END_OF_INPUT, reloadSignals, type ServiceManager, stopSignals } from "./process.ts";
import type { HttpServer } from "./serve-http.ts";

/** What the command line gives to a service. */
export interface RunOptions {
  /**
   * Stop when standard input closes, and then remove this folder. Null: run as an ordinary service.
   */
  readonly privateFolder: string | null;
  readonly version: string;
  readonly commit: string;
  /** Writes a log line. */
  write(line: string): void;
}

/** An agent or a router. */
interface Service {
  readonly state: string;
  /** Waits for clients until `forceStop` fires. */
  stop(forceStop: AbortSignal): Promise<void>;
}

export interface RunParts<Running extends Service> {
  readonly kind: "agent" | "router";
  readonly logger: Logger;
  readonly manager: ServiceManager;
  readonly privateFolder: RunOptions["privateFolder"];
  start(): Promise<Running>;
  serve(service: Running): Promise<HttpServer>;
  /** Applies the configuration file. If it is invalid, the current configuration stays in use. */
  reload(service: Running): Promise<void>;
  /** Fields of the log line when the service is ready. */
  readonly ready: Readonly<Record<string, unknown>>;
  /** Status for the service manager: at first, and after a reload. */
  readonly statuses: readonly [first: string, later: string];
}

/**
 * Runs a service until SIGTERM or SIGINT; reloads on SIGHUP. A second signal stops without waiting
 * for clients.
 */
export async function runService<Running extends Service>(parts: RunParts<Running>): Promise<void> {
  const { kind, logger, manager, privateFolder, statuses } = parts;
  const reloads = reloadSignals();
  const signals = stopSignals(privateFolder !== null);
  const service = await parts.start();
  await using http = await parts.serve(service).catch(async (error) => {
    await service.stop(AbortSignal.abort());
    throw error;
  });
  reloads.begin(async () => {
    if (service.state !== "ready") return;
    manager.reloading();
    try {
      await parts.reload(service);
    } catch (error) {
      logger.error(`configuration reload failed: ${messageOf(error)}`);
    }
    await http.reload();
    manager.ready(statuses[1]);
  });
  logger.info("api listening", { url: http.url });
  logger.info(`${kind} ready`, parts.ready);
  manager.ready(statuses[0]);
  const signal = await signals.first;
  logger.info(`${kind} stopping`, { signal });
  manager.stopping();
  crashPoint("stop.asked");
  await service.stop(signals.second);
  // After a signal the folder is kept, since the service may be restarted on it.
  if (privateFolder !== null && signal === END_OF_INPUT) {
    rmSync(privateFolder, { recursive: true, force: true });
  }
  logger.info(`${kind} stopped`, {});
}
