/** Business code: takes an order, and says so. What it runs on is behind two ports. */
public final class OrderService {

    /** The other port: where orders and stock are kept. */
    public interface Orders {

        long save(String customer, String item);

        void takeFromStock(String item);
    }

    private final Orders orders;
    private final DomainEventPublisher publisher;

    public OrderService(Orders orders, DomainEventPublisher publisher) {
        this.orders = orders;
        this.publisher = publisher;
    }

    public long place(String customer, String item) {
        var orderId = orders.save(customer, item);
        publisher.publish(new DomainEvent(
                "order.placed",
                Json.object("orderId", orderId, "customer", customer, "item", item),
                "order", Long.toString(orderId),
                "customer:" + customer)); // the orders of one customer are delivered in order
        orders.takeFromStock(item);
        return orderId;
    }
}
