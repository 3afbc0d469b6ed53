export { EventLog } from "./event-log.ts";
export {
  type EventPage,
  type HearthEvent,
  type NumberedEvent,
  type ToldEvent,
  toldEvent,
} from "./events.ts";
