import java.util.List;

/** A unit test without a database: the in-memory adapter stands in for outbox. */
public final class OrderServiceTest {

    public static void main(String[] args) {
        var publisher = new InMemoryDomainEventPublisher();
        var orders = new OrderService.Orders() {
            @Override
            public long save(String customer, String item) {
                return 42;
            }

            @Override
            public void takeFromStock(String item) {
            }
        };

        new OrderService(orders, publisher).place("anna", "a \"book\"");

        var expected = List.of(new DomainEvent("order.placed",
                "{\"orderId\":42,\"customer\":\"anna\",\"item\":\"a \\\"book\\\"\"}", "order", "42", "customer:anna"));
        if (!publisher.published().equals(expected)) {
            throw new AssertionError("published " + publisher.published());
        }
        System.out.println("placing an order publishes order.placed");
    }
}
