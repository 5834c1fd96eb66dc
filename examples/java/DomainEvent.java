/** What happened, in the words of the domain. The payload is JSON; events with the same key are delivered in order, one at a time. */
public record DomainEvent(String type, String payload, String aggregateType, String aggregateId, String key) {
}
