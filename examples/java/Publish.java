import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;

/**
 * Takes orders: {@code java Publish CUSTOMER ITEM...}
 *
 * <p>The order, the stock and the event are written in one transaction: after the commit all of
 * them are there, and if anything fails, none is. There is no moment in which an order is
 * stored and its event is not, whatever crashes.
 */
public final class Publish {

    private record JdbcOrders(Connection connection) implements OrderService.Orders {

        @Override
        public long save(String customer, String item) {
            try (var statement = connection.prepareStatement(
                    "insert into shop.orders (customer, item) values (?, ?) returning order_id")) {
                statement.setString(1, customer);
                statement.setString(2, item);
                try (var rows = statement.executeQuery()) {
                    rows.next();
                    return rows.getLong(1);
                }
            } catch (SQLException e) {
                throw new IllegalStateException("cannot save the order", e);
            }
        }

        /** Nothing left? The check constraint refuses it, and order and event are gone with it. */
        @Override
        public void takeFromStock(String item) {
            try (var statement = connection.prepareStatement(
                    "update shop.stock set available = available - 1 where item = ?")) {
                statement.setString(1, item);
                statement.executeUpdate();
            } catch (SQLException e) {
                throw new IllegalStateException("not in stock", e);
            }
        }
    }

    public static void main(String[] args) throws SQLException {
        var database = Database.fromEnvironment();
        var customer = args[0];
        try {
            for (var item : List.of(args).subList(1, args.length)) {
                var orderId = Database.inTransaction(database, connection ->
                        new OrderService(new JdbcOrders(connection), new JdbcDomainEventPublisher(connection))
                                .place(customer, item));
                System.out.println("order " + orderId);
            }
        } catch (IllegalStateException e) {
            System.err.println("no order: " + e.getMessage());
            System.exit(1);
        }
    }
}
