export { createWorkerTable, type WorkerTableOptions } from "./worker-table.ts";
