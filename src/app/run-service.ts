import { rmSync } from "node:fs";
import { messageOf } from "../core/index.ts";
import { crashPoint } from "../native/index.ts";
import type { Logger } from "../observability/index.ts";
import { END_OF_INPUT, reloadSignals, type ServiceManager, stopSignals } from "./process.ts";
import type { HttpServer } from "./serve-http.ts";

/** Options of a service from the command line. */
export interface RunOptions {
  /**
   * Folder to delete when the service stops because its standard input closed. Null: standard input
   * does not stop the service, and nothing is deleted.
   */
  readonly privateFolder: string | null;
  readonly version: string;
  readonly commit: string;
  /** Writes one log line. */
  write(line: string): void;
}

/** Members common to a running agent and a running router. */
interface Service {
  readonly state: string;
  /** Stops the service. Waits for clients until `forceStop` fires. */
  stop(forceStop: AbortSignal): Promise<void>;
}

export interface RunParts<Running extends Service> {
  readonly kind: "agent" | "router";
  readonly logger: Logger;
  readonly manager: ServiceManager;
  readonly privateFolder: RunOptions["privateFolder"];
  start(): Promise<Running>;
  serve(service: Running): Promise<HttpServer>;
  /**
   * Rereads the configuration file and applies it. If it is invalid, the current configuration
   * stays in use.
   */
  reload(service: Running): Promise<void>;
  /** Fields of the log line written when the service is ready. */
  readonly ready: Readonly<Record<string, unknown>>;
  /** Status texts for the service manager: when the service is ready, and after a reload. */
  readonly statuses: readonly [first: string, later: string];
}

/**
 * Runs a service until SIGTERM or SIGINT. SIGHUP reloads it. A second stop signal ends the wait for
 * clients.
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
  // Keep the folder after a signal, because the service may be restarted with it.
  if (privateFolder !== null && signal === END_OF_INPUT) {
    rmSync(privateFolder, { recursive: true, force: true });
  }
  logger.info(`${kind} stopped`, {});
}
